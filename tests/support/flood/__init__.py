"""A flood of samples, driven as the SDK drives them under batched polls, and a ledger of each.

    python -m tests.support.flood --samples 131072 --sessions 4

| module    | what it holds                                                            |
|-----------|--------------------------------------------------------------------------|
| `wire`    | one HTTP connection                                                      |
| `samples` | requests, and what is right about a result                               |
| `ledger`  | what became of every sample, and what happened on the way                |
| `client`  | sessions, submits, one held poll per sampling session, fetches           |
| `servers` | the gateway and the stand-in vLLM as processes, and their figures        |
| `probe`   | a process of its own that asks for healthz ten times a second            |
| `run`     | the phases: submit all, hold all, release, until the last is acknowledged|
| `report`  | the figures as a table and as JSON                                       |
"""
