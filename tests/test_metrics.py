"""The Prometheus text."""

from asgi_gateway.metrics import Metrics


def test_large_numbers_are_exact() -> None:
    metrics = Metrics()
    metrics.samples["succeeded"] = 1_234_567
    metrics.gauge("charged_bytes", "Bytes.", lambda: 12_345_678_901)
    metrics.gauge("ratio", "A fraction.", lambda: 0.25)
    lines = metrics.render().decode().splitlines()
    assert 'asgi_gateway_samples_total{outcome="succeeded"} 1234567' in lines
    assert "asgi_gateway_charged_bytes 12345678901" in lines
    assert "asgi_gateway_ratio 0.25" in lines
    assert "asgi_gateway_bugs_total 0" in lines
