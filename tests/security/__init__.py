"""The OWASP API Security Top 10 of 2023, as far as it applies; see test_owasp."""
