"""Faults injected for real, and loadgen's ledger as their judge: `make faults`."""
