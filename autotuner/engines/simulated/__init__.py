"""A server that behaves as SGLang does on hosts that nobody has to own: its flags, log, HTTP interface, speed and crashes."""
