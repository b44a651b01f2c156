"""The deterministic side: workflows that interpret recorded data without user code, model SDKs, clocks or I/O."""
