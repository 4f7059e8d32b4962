"""Jobs over topics and archives: each a module with a function, and a command ``lsmq pipeline NAME``."""
