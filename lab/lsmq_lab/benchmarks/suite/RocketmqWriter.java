import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.protocol.body.BrokerReplicasInfo.ReplicasInfo;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Sends a message to one queue at a steady pace. Prints a line for each that was acknowledged, and again and again who
 * leads a group of brokers and how many of them are in sync.
 *
 * Arguments: name servers, a controller, the group, the topic, bytes a message, the pace and that of the view of the
 * group in milliseconds, and settings of the producer as name=value.
 */
public final class RocketmqWriter {
    public static void main(String[] arguments) throws Exception {
        String names = arguments[0];
        String controller = arguments[1];
        String group = arguments[2];
        String topic = arguments[3];
        byte[] body = "x".repeat(Integer.parseInt(arguments[4])).getBytes(StandardCharsets.US_ASCII);
        long paceMs = Long.parseLong(arguments[5]);
        long viewMs = Long.parseLong(arguments[6]);

        DefaultMQProducer producer = new DefaultMQProducer(topic);
        producer.setNamesrvAddr(names);
        producer.setDefaultTopicQueueNums(1);
        Properties settings = new Properties();
        for (String setting : Arrays.asList(arguments).subList(7, arguments.length)) {
            String[] parts = setting.split("=", 2);
            settings.setProperty(parts[0], parts[1]);
        }
        MixAll.properties2Object(settings, producer);
        producer.start();
        DefaultMQAdminExt admin = new DefaultMQAdminExt();
        admin.setNamesrvAddr(names);
        admin.start();

        ScheduledExecutorService scheduler = Executors.newScheduledThreadPool(2);
        scheduler.scheduleAtFixedRate(() -> send(producer, new Message(topic, body)), 0, paceMs, TimeUnit.MILLISECONDS);
        scheduler.scheduleWithFixedDelay(() -> view(admin, controller, group), 0, viewMs, TimeUnit.MILLISECONDS);
    }

    private static void send(DefaultMQProducer producer, Message message) {
        try {
            producer.send(message, new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    say(result.getSendStatus() == SendStatus.SEND_OK ? "acknowledged" : "refused " + result);
                }

                @Override
                public void onException(Throwable error) {
                    say("refused " + error);
                }
            });
        } catch (Exception error) {
            say("refused " + error);
        }
    }

    private static void view(DefaultMQAdminExt admin, String controller, String group) {
        try {
            ReplicasInfo found = admin.getInSyncStateData(controller, List.of(group)).getReplicasInfoTable().get(group);
            if (found != null) {
                say("replicas " + found.getMasterAddress() + " " + found.getInSyncReplicas().size());
            }
        } catch (Exception error) {
            say("unknown " + error);
        }
    }

    private static synchronized void say(String line) {
        System.out.println(line.replace('\n', ' '));
        System.out.flush();
    }
}
