"""Several processes of `serve` on one port, and the supervisor that starts and replaces them.

The supervisor holds the listening socket and serves nothing. Each worker is `serve` over that
socket. A pair of sockets connects it with the supervisor, over which both say words, a line each;
one whose supervisor is gone reads the end of it. Metrics and the status page are summed up by
whichever worker is asked.
"""
