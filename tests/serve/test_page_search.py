"""The page in a browser with embeddings of texts: class, item, vector, filter, addresses."""

import json
from urllib.parse import unquote

import numpy as np
import pytest

from hashcade import HashTable
from tests.serve.browsing import keep, needs_browser, serious
from tests.serve.factories import process

pytestmark = needs_browser
BIRDS = ["Sooty_Albatross", "Arctic_Tern", "Least_Tern", "Grey_Heron", "Little_Auk", "Blue_Jay"]
LABELS = [f"{number:03d}.{bird}" for number, bird in enumerate(BIRDS, 1)]
PER_CLASS, DIM = 6, 8  # fewer of a class than neighbours: some are of another class


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    """A table of embeddings with a text and a year each, and the address of its service."""
    folder = tmp_path_factory.mktemp("sentences")
    rng = np.random.default_rng(0)
    labels = np.repeat(LABELS, PER_CLASS)
    centres = np.repeat(3 * rng.normal(size=(len(LABELS), DIM)), PER_CLASS, axis=0)
    X = (centres + 0.3 * rng.normal(size=centres.shape)).astype(np.float32)
    payload = [
        {"text": f"note {row} of a watcher " + "who has much to say " * 20, "year": 2015 + row % 10}
        for row in range(len(X))
    ]
    table = HashTable(width=4, steps=30, verbose=False)
    table.fit(X, labels, payload=payload)
    table.save(folder / "table")
    with process(folder / "table", log=folder / "log", read_only=True, deadline=120) as service:
        yield service.url, table, X


def overflow(page, selector):
    """How far the content of elements is cut off, in lines."""
    return page.locator(selector).evaluate_all(
        "(all) => all.map((e) => Math.round(e.clientHeight / parseFloat("
        "getComputedStyle(e).lineHeight)))"
    )


def test_neighbours_stand_under_the_query_and_those_of_another_class_are_marked(
    open_page, sentences
):
    url, table, X = sentences
    page = open_page("#/item/0", base=url)
    page.wait_for_selector(".neighbours li")
    parts = (".query", ".neighbours", ".path", ".bucket")
    tops = [page.locator(part).first.bounding_box()["y"] for part in parts]
    assert tops == sorted(tops)
    expected = table.search(X[:1], 10, exclude_self=[0])[0]
    tiles = page.locator(".neighbours .item")
    assert tiles.count() == 10
    for place, match in enumerate(expected):
        tile = tiles.nth(place)
        assert tile.get_attribute("href") == f"#/item/{match.id}"
        other = match.label != LABELS[0]
        assert tile.locator(".mark").count() == other
        assert ("another class" in tile.get_attribute("aria-label")) == other
    n_other = sum(match.label != LABELS[0] for match in expected)
    assert n_other == 5
    assert f"{n_other} of another class" in page.locator("main").inner_text()
    keep(page, "sentences-item")


def test_captions_are_readable_two_lines_at_most_and_whole_in_the_title(open_page, sentences):
    url, _, _ = sentences
    page = open_page("#/item/0", base=url, width=390)
    page.wait_for_selector(".neighbours li")
    captions = page.locator(".neighbours .caption")
    assert set(captions.all_inner_texts()) <= {bird.replace("_", " ") for bird in BIRDS}
    assert max(overflow(page, ".neighbours .caption")) <= 2
    assert max(overflow(page, ".neighbours .text > span")) <= 4
    first = page.locator(".neighbours .item").first
    assert LABELS[0] in first.get_attribute("title")
    assert "who has much to say " * 20 in first.get_attribute("title")
    assert page.locator(".neighbours dt").first.inner_text() == "year"
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    keep(page, "sentences-item-narrow")


def test_search_by_class_with_suggestions(open_page, sentences):
    url, _, _ = sentences
    page = open_page(base=url)
    page.fill("#class-name", "tern")
    page.wait_for_selector("#classes option:nth-child(2):last-child", state="attached")
    suggested = page.locator("#classes option").evaluate_all("(all) => all.map((o) => o.value)")
    assert suggested == ["003.Least_Tern", "002.Arctic_Tern"]
    page.fill("#class-name", "sooty alb")  # a part of the name is enough if it is the only one
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('Sooty Albatross')")
    page.wait_for_selector(".grid.wide .item")
    assert page.locator(".grid.wide .item").count() == PER_CLASS
    assert set(page.locator(".grid.wide .caption").all_inner_texts()) == {"Sooty Albatross"}
    keep(page, "sentences-class")
    page.goto(f"{url}/#/class/tern")
    page.wait_for_selector(".names a")
    assert page.locator(".names a").all_inner_texts() == ["Least Tern", "Arctic Tern"]
    page.goto(f"{url}/#/class/unicorn")
    page.wait_for_selector("h1:has-text('There is no class “unicorn”')")


def test_search_by_a_pasted_vector(open_page, sentences):
    url, table, X = sentences
    page = open_page(base=url)
    page.click("summary:has-text('Paste a vector')")
    page.fill("#vector", "1, 2, three")
    page.click("form:has(#vector) button")
    page.wait_for_selector("#vector-note:has-text('“three” is not a number')")
    page.fill("#vector", "1, 2")
    page.click("form:has(#vector) button")
    page.wait_for_selector("#vector-note:has-text('2 of 8 numbers')")
    page.fill("#vector", str(X[7]))  # as numpy prints it, in brackets and without commas
    page.click("form:has(#vector) button")
    page.wait_for_selector("h1:has-text('Neighbours of your vector')")
    page.wait_for_selector(".neighbours li")
    expected = table.search(X[7:8], 10)[0]
    shown = page.locator(".neighbours .item").evaluate_all(
        "(all) => all.map((a) => Number(a.hash.split('/')[2]))"
    )
    assert shown == [match.id for match in expected]
    n_other = sum(match.label != "002.Arctic_Tern" for match in expected)
    assert page.locator(".neighbours .mark").count() == n_other  # than the most frequent one


def test_filters_hold_for_items_and_searches(open_page, sentences):
    url, table, X = sentences
    page = open_page("#/item/0", base=url)
    page.wait_for_selector(".neighbours li")
    page.click("#filter summary")
    for n, (field, operator, value) in enumerate(
        [("year", ">=", "2020"), ("year", "<", "2023")], 1
    ):
        page.click("text=Add a condition")
        page.fill(f"[aria-label='Field of condition {n}']", field)
        page.select_option(f"[aria-label='Operator of condition {n}']", operator)
        page.fill(f"[aria-label='Value of condition {n}']", value)
    fields = page.locator("#filter-fields option").evaluate_all("(all) => all.map((o) => o.value)")
    assert {"label", "text", "year"} <= set(fields)
    with page.expect_response(lambda answer: "/v1/explain/item/0" in answer.url) as asked:
        page.click("#filter button[type=submit]")
    where = {"year": {">=": 2020, "<": 2023}}
    assert json.dumps(where, separators=(",", ":")) in unquote(asked.value.url)
    page.wait_for_selector(".filtered:has-text('year ≥ 2020 and year < 2023')")
    expected = [m.id for m in table.search(X[:1], 10, where=where, exclude_self=[0])[0]]
    shown = page.locator(".neighbours .item").evaluate_all(
        "(all) => all.map((a) => Number(a.hash.split('/')[2]))"
    )
    assert shown == expected
    years = page.locator(".neighbours dd").all_inner_texts()
    assert set(years) <= {"2020", "2021", "2022"}
    keep(page, "sentences-filter")
    assert serious(page) == []
    page.fill("[aria-label='Value of condition 1']", "3000")
    page.click("#filter button[type=submit]")
    page.wait_for_selector("h2:has-text('No item passes the filter')")
    page.wait_for_selector("h2:has-text('No neighbours')")
    keep(page, "sentences-nothing-passes")
    page.click("text=Clear the filter >> nth=0")
    page.wait_for_selector(".neighbours li")
    assert page.locator(".neighbours li").count() == 10


@pytest.mark.parametrize(
    ("address", "title", "status"),
    [
        ("#/nonsense", "Page not found", None),
        ("#/tree/zero", "Page not found", None),
        ("#/item/99999", "There is no item 99999", "404"),
        ("#/item/abc", "Item abc cannot be shown", "422"),
        ("#/tree/99", "There is no slot 99", "422"),
        ("#/class/none", "There is no class “none”", None),
    ],
)
def test_unknown_addresses_say_so(open_page, sentences, address, title, status):
    page = open_page(address, base=sentences[0], expected=status)
    page.wait_for_selector("main h1")
    assert page.locator("main h1").inner_text() == title
    assert page.locator("main .empty, main .problem").count() == 1
    assert serious(page) == []


def test_the_tree_by_keyboard_alone(open_page, sentences):
    page = open_page(base=sentences[0])

    def tab_to(selector):
        for _ in range(80):
            page.keyboard.press("Tab")
            if page.evaluate("(s) => document.activeElement.matches(s)", selector):
                return
        pytest.fail(f"{selector} cannot be reached")

    tab_to("nav a[data-page=tree]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".map .tile")
    page.wait_for_selector("h1:focus")
    tab_to(".tile")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.matches('.tile')")
    page.keyboard.press("Enter")
    page.wait_for_selector(".crumbs li:nth-child(2)")
    tab_to(".tile")
    page.keyboard.press("Enter")
    page.wait_for_selector(".grid.wide .item")
    tab_to(".grid.wide .item")
    page.keyboard.press("Enter")
    page.wait_for_selector(".neighbours li")
    page.go_back()
    page.wait_for_selector(".grid.wide .item")
    tab_to(".crumbs a")
    page.keyboard.press("Enter")
    page.wait_for_selector("h1:has-text('The tree')")
    tab_to("[data-view=list]")
    page.keyboard.press("Enter")
    page.wait_for_selector(".slots a")


def test_titles_fit_into_their_areas(open_page, sentences):
    page = open_page("#/tree", base=sentences[0])
    page.wait_for_selector(".tile")
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.tile:not(.bare)')].filter((tile) => {
            const area = tile.getBoundingClientRect();
            const words = tile.querySelector('.words').getBoundingClientRect();
            return words.bottom > area.bottom + 1 || words.right > area.right + 1;
        }).length"""
    )
    assert outside == 0
    keep(page, "sentences-tree")


@pytest.mark.parametrize(
    ("scheme", "width"),
    [
        ("dark", 390),
        pytest.param("light", 390, marks=pytest.mark.slow),
        pytest.param("light", 1280, marks=pytest.mark.slow),
        pytest.param("dark", 1280, marks=pytest.mark.slow),
    ],
)
def test_every_view_is_open_to_everyone(open_page, sentences, scheme, width):
    url, table, _ = sentences
    path = "/".join(map(str, table.index.shape.paths(table[0].bucket_ids[0]).tolist()))
    views = {
        "#/search": ".grid .item",
        "#/item/0": ".neighbours li",
        "#/class/003.Least_Tern": ".item",
        "#/class/tern": ".names",
        "#/tree": ".tile, .slots",
        f"#/tree/{path}": ".item",
        "api": ".route",
    }
    for number, (address, wait) in enumerate(views.items()):
        page = open_page(address, base=url, width=width, scheme=scheme)
        page.wait_for_selector(wait)
        if address == "api":
            page.click("#POST-v1-explain summary")
            page.wait_for_selector("#POST-v1-explain table")
        elif address == "#/search":
            for summary in page.locator(".chooser .box > summary").all():
                summary.click()
            page.click("text=Add a condition")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert serious(page) == []
        keep(page, f"sentences-{width}-{scheme}-{number}")
