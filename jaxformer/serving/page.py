"""The page as one file: its style and its script are put into its HTML.

The policy that goes with it names these two by their hashes and lets the browser load
nothing else: the page works without any network but this server.
"""

import base64
import hashlib
from importlib import resources
from typing import NamedTuple, Self


class Page(NamedTuple):
    """What is sent to a browser."""

    html: str
    policy: str  # Content-Security-Policy

    @classmethod
    def read(cls) -> Self:
        """Put the page together from the files beside this module."""
        folder = resources.files(__package__)
        html, style, script = (
            folder.joinpath(name).read_text(encoding="utf-8")
            for name in ("page.html", "page.css", "page.js")
        )
        style, script = f"\n{style}", f"\n{script}"
        return cls(
            html.replace('<link rel="stylesheet" href="page.css">',
                         f"<style>{style}</style>")
            .replace('<script src="page.js"></script>', f"<script>{script}</script>"),
            f"default-src 'none'; connect-src 'self'; img-src data:; "
            f"style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        )  # fmt: skip


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
