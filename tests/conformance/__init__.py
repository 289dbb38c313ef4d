"""PyTorch's own operator samples (``op_db``) on webgpu against the CPU: what works natively, what falls back, what is wrong.

``make conformance`` runs every op × dtype in worker processes; it writes ``docs/ops.csv`` (the data)
and ``docs/ops.md`` (the table).
"""
