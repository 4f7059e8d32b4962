"""What monitoring is told by topic and by group: a bounded number of series, whatever there is."""

from .metrics import MonitoringCollector
from .service import Monitoring

__all__ = ["Monitoring", "MonitoringCollector"]
