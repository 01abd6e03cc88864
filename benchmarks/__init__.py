"""Speed and memory of the losses against their peers: `python -m benchmarks --help`."""
