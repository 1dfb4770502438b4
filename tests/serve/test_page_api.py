"""The page of the API in a browser: its examples are run, here and as a program would."""

from tests.serve.browsing import keep, needs_browser, serious

pytestmark = needs_browser
READS = [
    "POST-v1-search", "GET-v1-search-item-item_id-", "POST-v1-explain",
    "GET-v1-explain-item-item_id-", "GET-v1-items", "GET-v1-items-item_id-", "GET-v1-classes",
    "GET-v1-tree", "GET-v1-buckets-bucket_id-", "GET-v1-pictures-item_id-", "GET-v1-stats",
    "GET-health", "GET-ready", "GET-metrics",
]  # fmt: skip
CHANGES = ["POST-v1-items", "POST-v1-items-remove", "DELETE-v1-items-item_id-", "POST-v1-save"]


def test_examples_can_be_run_on_the_page(open_page):
    page = open_page("api")
    for name in READS:
        route = page.locator(f"#{name}")
        route.locator("summary").click()
        route.locator("button[type=submit]").click()
        route.locator(".try [role=status] .note").wait_for()
        assert route.locator(".try [role=status] .note").inner_text().startswith("200"), name
        assert route.locator("h3:has-text('Answer')").count() == 1
        route.locator("summary").click()
    for name in CHANGES:
        route = page.locator(f"#{name}")
        route.locator("summary").click()
        route.locator("pre").first.wait_for()
        assert route.locator("button[type=submit]").count() == 0
        route.locator("summary").click()
    page.click("#POST-v1-explain summary")
    names = page.locator("#POST-v1-explain table").last.locator("th code").all_inner_texts()
    assert {"results[].distance", "levels[].nodes[].slot", "candidates"} <= set(names)
    assert serious(page) == []
    keep(page, "api-explain")


def test_snippets_in_python_run_as_they_stand(open_page):
    page = open_page("api")
    for name in READS:
        route = page.locator(f"#{name}")
        route.locator("summary").click()
        snippet = route.locator("pre[aria-label=Python]").inner_text()
        if name == "POST-v1-search":  # the queries are those of the reader
            continue
        results = {}
        exec(compile(snippet, name, "exec"), results)
        assert results.get("answer") or results.get("content"), name
