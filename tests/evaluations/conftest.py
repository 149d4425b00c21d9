import pytest

from varcon.data import DataSettings, load


@pytest.fixture(scope="session")
def digits():
    return load(DataSettings())
