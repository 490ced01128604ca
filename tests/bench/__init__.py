"""The figures that the gateway is held to, in one table.

    python -m tests.bench [--quick] [--only ROWS] [--json FILE]

| module       | what it holds                                                          |
|--------------|------------------------------------------------------------------------|
| `link`       | a connection, the closed loop over many, and the one of fixed requests |
| `loops`      | the closed loops of samples: polled one by one, batched, only held     |
| `requests`   | the bytes that are sent                                                |
| `driver`     | a process with one loop in it                                          |
| `bare`       | the server of `asgi-gateway serve` around an application that is empty |
| `processes`  | servers and drivers as processes, each on its core, and their CPU time |
| `floors`     | what the parts of a sample cost at the least                           |
| `per_sample` | CPU per sample against that floor                                      |
| `delivery`   | the second delivery of a result                                        |
| `memory`     | bytes a queued sample, bytes a parked poll                             |
| `flood`      | the rows of a flood: memory, health checks, collector, rate            |
| `table`      | rows, text, JSON                                                       |
| `stamp`      | what a JSON report says about where it was made                        |
| `codec_rows` | decoding, where `codec` is there                                       |
| `groups`     | which module measures which row                                        |
"""
