"""Inside a worker: execute attempts, write their heartbeats, stop them, record their outcome."""
