# SPDX-License-Identifier: BSD-3-Clause
"""The site that tools/site makes: its links, its search, and that it needs no network."""

import collections
import html.parser
import json
import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = ROOT / "build/site/html"
URL = "https://example.org/pier/blob/main"
# Elements by number, as CommonMark has them: a list that the site does not see would be a paragraph.
ELEMENTS = re.compile(r"<(li|ul|ol|tr|pre|h[1-6]|blockquote|img|em|strong)\b")
COMMONMARK = """
import json, sys
from markdown_it import MarkdownIt
markdown = MarkdownIt("commonmark").enable("table")
json.dump({name: markdown.render(open(name).read()) for name in sys.argv[1:]}, sys.stdout)
"""
# Attributes whose address a browser loads by itself.
LOADED = {("img", "src"), ("script", "src"), ("link", "href"), ("iframe", "src"), ("source", "srcset")}


class Page(html.parser.HTMLParser):
    """The anchors of a page, and its (tag, attribute, address)."""

    def __init__(self, path):
        super().__init__()
        self.anchors, self.twice, self.links = set(), set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.twice |= self.anchors & {value}
                self.anchors.add(value)
            elif name in ("href", "src", "srcset"):
                self.links.append((tag, name, value))


def build(*arguments):
    done = subprocess.run([ROOT / "tools/site", *arguments], check=False, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode == os.EX_UNAVAILABLE:
        raise unittest.SkipTest("the tools for the site cannot be had from PyPI")
    if done.returncode:
        raise AssertionError(done.stderr)
    return {path: Page(path) for path in SITE.rglob("*.html")}


class Site(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.pages = build()

    def test_links_lead_to_pages_and_anchors(self):
        dead = []
        for path, page in self.pages.items():
            # The page of an address that does not exist is shown at any depth, by a server.
            links = page.links if path.name != "404.html" else []
            for _, _, link in links:
                name, _, anchor = link.partition("#")
                target = (path.parent / name).resolve() if name else path
                if re.match(r"\w+:", link):
                    continue
                if not target.exists() or anchor and anchor not in self.pages[target].anchors:
                    dead.append("%s: %s" % (path.relative_to(SITE), link))
        self.assertEqual(dead, [])

    def test_documents_look_as_on_github(self):
        documents = [ROOT / page for page in re.findall(
            r"^ *- (?:\w+: )?(\S+\.md)$", (ROOT / "docs/site/mkdocs.yml").read_text(), re.MULTILINE)]
        done = subprocess.run([ROOT / "build/site/tools/bin/python", "-c", COMMONMARK, *documents],
                              check=True, text=True, stdout=subprocess.PIPE)
        for name, expected in json.loads(done.stdout).items():
            page = SITE / pathlib.Path(name.replace("README.md", "index.md")).relative_to(ROOT)
            text = page.with_suffix(".html").read_text()
            article = text[text.index("<article"):text.index("</article>")]
            self.assertEqual(collections.Counter(ELEMENTS.findall(article)),
                             collections.Counter(ELEMENTS.findall(expected)), name)

    def test_no_anchor_is_there_twice(self):
        self.assertEqual({path.name: page.twice for path, page in self.pages.items() if page.twice}, {})

    def test_nothing_is_loaded_from_a_network(self):
        loaded = [(path.name, link) for path, page in self.pages.items()
                  for tag, name, link in page.links if (tag, name) in LOADED and "//" in link]
        self.assertEqual(loaded, [])
        for style in SITE.rglob("*.css"):
            self.assertEqual(re.findall(r"url\(\W*(?:https?:)?//[^)]*", style.read_text()), [], style)

    def test_search_finds_every_function(self):
        index = json.loads((SITE / "search/search_index.json").read_text())
        found = {entry["location"] for entry in index["docs"]}
        text = " ".join(entry["text"] + entry["title"] for entry in index["docs"]
                        if entry["location"].startswith("reference/"))
        functions = set(re.findall(r"^\t(pier_\w+);", (ROOT / "pier.map").read_text(), re.MULTILINE))
        self.assertTrue(functions)
        self.assertEqual(functions - set(re.findall(r"\w+", text)), set())
        self.assertIn("reference/mr.html#pier_mr_reg", found)
        self.assertTrue((SITE / "search/search_index.js").read_text().startswith("var __index"))

    def test_functions_that_documents_name_are_links(self):
        links = [link for path, page in self.pages.items() if path.parent.name == "docs"
                 for _, _, link in page.links if re.match(r"\.\./reference/\w+\.html#pier_", link)]
        self.assertIn("../reference/mr.html#pier_mr_reg_dmabuf", links)

    def test_sources_are_text_without_the_address_of_the_tree(self):
        links = {link for page in self.pages.values() for _, _, link in page.links}
        self.assertEqual([link for link in links if link.endswith(".c")], [])


class Sources(unittest.TestCase):
    def test_sources_are_links_into_the_tree(self):
        links = {link for page in build("--source-url", URL).values() for _, _, link in page.links}
        files = [link[len(URL) + 1:] for link in links if link.startswith(URL)]
        self.assertIn("examples/first.c", files)
        self.assertEqual([file for file in files if not (ROOT / file).exists()], [])


if __name__ == "__main__":
    unittest.main()
