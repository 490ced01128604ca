from collections.abc import Iterator

import pytest

from tests.contract.sdk import Sdk, sdk_process


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    """One process of the real SDK for every server."""
    with sdk_process() as running:
        yield running
