import pytest

from tests.reporting.browser import Browser


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def page(chromium):
    """A browser that must have nothing to complain about and nobody to call at the end of the test."""
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.set_viewport()
    yield chromium
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith(("file:", "data:"))] == []
