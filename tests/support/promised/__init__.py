"""Parts of the machine that holds a gateway to its promises: what it knows, and its rules."""

import pytest

# Their assertions are to say as much as those of a test module.
pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("answering", "books", "polling", "process", "submitting"))
)
