"""Settings of a Spark that has a few hundred rows at a time: what is compiled for them costs more than it saves."""

from __future__ import annotations

JAVA_OF_FEW_ROWS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FEW_ROWS = {
    "spark.driver.extraJavaOptions": JAVA_OF_FEW_ROWS,
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
