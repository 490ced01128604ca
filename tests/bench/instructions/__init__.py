"""Instruction counts of the hot functions: a rise that timings on a shared machine would hide.

`cases` has the functions, `worker` runs them under callgrind, `measure` starts the worker and reads
what callgrind wrote, `stored` compares with `counts.json`, `__main__` is the command line.
"""
