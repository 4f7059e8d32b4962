"""What monitoring and people are told by topic and by group: a bounded number, whatever there is."""

from .biggest import OTHERS
from .lag_history import EVERY_S
from .metrics import MonitoringCollector
from .service import Monitoring

__all__ = ["EVERY_S", "OTHERS", "Monitoring", "MonitoringCollector"]
