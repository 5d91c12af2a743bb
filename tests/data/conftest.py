"""What the libraries cache while these tests run goes to a folder of pytest's."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def caches(tmp_path_factory):
    datasets = pytest.importorskip("datasets", reason="needs datasets, to read text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        patch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path_factory.mktemp("tiktoken")))
        yield
