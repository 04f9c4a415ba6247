"""LibreTranslate's API, keys, foreign pages, and the documentation of both APIs."""

import contextlib
import math
from urllib.parse import urlencode

import openapi_spec_validator
import pytest

from jaxformer.decoding.text_pipeline import Direction
from jaxformer.serving.app import FORM
from jaxformer.serving.keys import Keys, RefusedError, read_keys
from jaxformer.system.errors import InputError

from .conftest import LANGUAGES, reverse

ASK = {"q": "ab cd", "source": "en", "target": "de"}


def form(server, path="/translate", query="", **values):
    return server.ask(
        path + query, urlencode(values).encode(), **{"Content-Type": FORM}
    )


def test_texts_are_answered_in_the_form_in_which_they_are_sent(serve):
    server = serve()
    once = {"translatedText": ">de< ba dc"}
    for reply in (
        server.ask("/translate", ASK | {"secret": "unknown fields are ignored"}),
        form(server, **ASK, format="text", alternatives="0"),
        form(server, query=f"?{urlencode(ASK)}"),
        server.ask(f"/translate?{urlencode(ASK)}", method="POST"),  # without a type
        server.ask("/translate", ASK | {"source": "en-GB", "target": "DE"}),
    ):
        assert (reply.status, reply.values) == (200, once)
    several = server.ask("/translate", ASK | {"q": ["a", "b.\nc"], "alternatives": 1})
    assert several.values == {
        "translatedText": [">de< a", ">de< .b c"],
        "alternatives": [[">de< a!"], [">de< .b c!"]],
    }
    more = form(server, **ASK, alternatives="99").values["alternatives"]
    assert more == [">de< ba dc!", ">de< ba dc!!"]  # all that was found


def test_the_tag_and_the_target_are_those_of_the_direction(serve):
    server = serve()
    asked = {"q": "ab", "source": "en", "target": "fr"}
    assert server.ask("/translate", asked).values == {"translatedText": ">fr< ba"}
    asked = {"q": "ab", "source": "zh", "target": "de"}
    found = server.ask("/translate", asked).values
    assert found == {"translatedText": f">de< {reverse('>zh<ab')}"}


@pytest.mark.parametrize(
    ("codes", "given", "code"),
    [
        (["zh", "zh-Hant"], "zh-TW", "zh-Hant"),
        (["zh", "zh-Hant"], "zh_Hant", "zh-Hant"),
        (["zh", "zh-Hant"], "zho_Hans", "zh"),
        (["zh", "zh-Hant"], "zt", "zh-Hant"),
        (["fa", "prs-Arab"], "prs", "prs-Arab"),
        (["en"], "en-x-0000", "en"),
        (["zh"], "zh-TW", "zh"),
        (["zh-Hant"], "zh-CN", ""),
        (["pt-BR", "pt"], "pt-PT", "pt"),
        (["pt-BR", "pt-PT"], "pt_pt", "pt-PT"),
        (["en", "zt"], "zt", "zt"),
        (["en", "de"], "DE", "de"),
        (["en", "pt"], "pb", "pt"),
        (["en", "x_y"], "x_y", "x_y"),
        (["en"], "e" * 1000, ""),
    ],
)
def test_a_code_is_of_one_language_and_script(serve, codes, given, code):
    directions = {"en": {each: Direction("en", "", f">{each}<") for each in codes}}
    languages = LANGUAGES._replace(directions=directions, name=str)
    server = serve(site={"languages": languages})
    reply = server.ask("/translate", {"q": "a", "source": "en", "target": given})
    assert reply.status == (200 if code else 400)
    assert not code or reply.values == {"translatedText": f">{code}< a"}


def test_a_source_is_detected_among_those_of_the_target(serve):
    server = serve()
    auto = {"source": "auto", "target": "de"}
    found = server.ask("/translate", {"q": "我", **auto}).values
    assert found["translatedText"] == f">de< {reverse('>zh<我')}"
    assert found["detectedLanguage"] == {"confidence": 90.0, "language": "zh"}
    found = form(server, q="我", source="auto", target="fr").values
    assert found["detectedLanguage"]["language"] == "en"
    found = server.ask("/translate", {"q": ["a", "b"], **auto}).values
    assert [each["language"] for each in found["detectedLanguage"]] == ["en", "en"]
    assert server.ask("/detect", {"q": "我"}).values == [
        {"confidence": 90.0, "language": "zh"}, {"confidence": 10.0, "language": "en"}
    ]  # fmt: skip


def test_languages_and_settings_are_those_of_the_server(serve):
    server = serve()
    assert server.ask("/languages").values == [
        {"code": "en", "name": "English", "targets": ["de", "fr"]},
        {"code": "zh", "name": "Chinese", "targets": ["de"]},
    ]
    settings = server.ask("/frontend/settings").values
    assert settings["language"]["target"] == {"code": "de", "name": "German"}
    assert (settings["apiKeys"], settings["keyRequired"]) == (False, False)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"q": ""}, "Invalid request: missing q parameter"),
        ({"q": []}, "Invalid request: missing q parameter"),
        ({"q": [1]}, "Invalid request: q is no text or list of texts"),
        ({"q": {"a": 1}}, "Invalid request: q is no text or list of texts"),
        ({"source": None}, "Invalid request: missing source parameter"),
        ({"target": ""}, "Invalid request: missing target parameter"),
        ({"source": "xx"}, "xx is not supported"),
        ({"source": ["en"]}, "['en'] is not supported"),
        ({"target": "auto"}, "auto is not supported"),
        ({"source": "zh", "target": "fr"}, "fr is not supported"),
        ({"source": "auto", "target": "zh"}, "zh is not supported"),
        ({"format": "pdf"}, "pdf format is not supported"),
        ({"format": "html", "q": "a < b"}, "line 1: no tag"),
        ({"phrases": [], "n_best": 2}, "Invalid request: q excludes n_best, phrases"),
        ({"alternatives": "two"}, "Invalid request: alternatives parameter is not a "
         "number"),
    ],
)  # fmt: skip
def test_a_bad_request_is_refused_in_the_words_of_libretranslate(serve, asked, error):
    reply = serve().ask("/translate", ASK | asked)
    assert (reply.status, reply.values) == (400, {"error": error})


def test_markup_is_translated_in_pieces_and_put_together(serve):
    asked = {"q": ["a b|c", "|d"], "format": "html", "alternatives": 1}
    found = serve().ask("/translate", ASK | asked).values
    assert found["translatedText"] == [">de< a b|>de< c", "|>de< d"]
    assert found["alternatives"] == [[">de< a b!|>de< c!"], ["|>de< d!"]]


def test_a_key_is_asked_for_and_counts_requests(serve):
    now = [0.0]
    keys = Keys({"free": math.inf, "slow": 2}, clock=lambda: now[0])
    server = serve(site={"keys": keys})
    for ask in (
        lambda **own: server.ask("/translate", ASK | own),
        lambda **own: server.ask("/translate", {"text": "a", **own}),
        lambda **own: server.ask("/score", {"source": "a", "target": "b", **own}),
        lambda **own: form(server, **ASK, **own),
        lambda **own: form(server, "/detect", f"?{urlencode(own)}", q="a"),
    ):
        none, wrong, right = ask(), ask(api_key="fre\u00e9"), ask(api_key="free")
        assert [each.status for each in (none, wrong, right)] == [400, 403, 200]
        assert "contact the server operator" in none.values["error"]
        assert wrong.values == {"error": "Invalid API key"}
    bearer = {"Authorization": "Bearer slow"}
    assert server.ask("/translate", ASK, **bearer).status == 200
    assert server.ask("/translate", ASK | {"api_key": "slow"}).status == 200
    now[0] += 29.5
    late = server.ask("/translate", ASK, **bearer)
    assert (late.status, late.headers["retry-after"]) == (429, "31")
    assert late.values == {"error": "Slowdown: 2 per 1 minute"}
    now[0] += 30.5
    assert server.ask("/translate", ASK, **bearer).status == 200
    assert server.ask("/languages").status == server.ask("/ready").status == 200
    assert server.ask("/frontend/settings").values["keyRequired"]
    assert server.ask("/health").values["api_keys"]


def test_a_key_never_has_more_than_the_requests_of_a_minute():
    now = [0.0]
    keys = Keys({"a": 3, "b": 1}, clock=lambda: now[0])
    times = []
    for now[0] in range(0, 400, 5):
        with contextlib.suppress(RefusedError):
            keys.check("a")
            times.append(now[0])
    assert times[:5] == [0, 5, 10, 60, 65]
    assert max(sum(at <= each < at + 60 for each in times) for at in times) == 3
    now[0] = 10_000.0
    keys.check("b")  # has requests of its own
    with pytest.raises(RefusedError, match="1 per 1 minute"):
        keys.check("b")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a b\n", 1), ("\t6", 1), ("k\u00e4y", 1), ("b\na\na", 3), ("a\n\nb", 2),
        ("a\t0", 1), ("a\tb", 1), ("a\t1\t2", 1),
    ],
)  # fmt: skip
def test_a_bad_file_of_keys_is_refused(tmp_path, text, line):
    (tmp_path / "keys").write_text(text, "utf-8")
    with pytest.raises(InputError, match=f"line {line} of .* is no new key") as caught:
        read_keys(tmp_path / "keys")
    assert "a b" not in str(caught.value)  # keys are secret
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path)


def test_keys_and_their_limits_are_read(tmp_path):
    (tmp_path / "keys").write_text("one\ntwo\t60\n")
    assert read_keys(tmp_path / "keys") == {"one": math.inf, "two": 60}


def test_other_pages_may_ask_where_they_are_allowed(serve, caplog):
    page, other = "https://de.example", "https://evil.example"
    allow = "access-control-allow-origin"
    asked = {"Access-Control-Request-Method": "POST"}
    asked["Access-Control-Request-Headers"] = "authorization, content-type"
    closed, open_ = serve(), serve(site={"origins": [page]})
    every = serve(site={"origins": ["*"]})
    for server, origin, expected in (
        (closed, page, None), (open_, page, page), (open_, other, None),
        (every, other, "*"),
    ):  # fmt: skip
        reply = server.ask("/translate", ASK, Origin=origin)
        assert (reply.status, reply.headers[allow]) == (200, expected)
        reply = server.ask("/translate", None, "OPTIONS", Origin=origin, **asked)
        assert (reply.status == 200, reply.headers[allow]) == (bool(expected), expected)
        # A browser sends the form of a foreign page without asking first.
        headers = {"Content-Type": FORM, "Origin": origin}
        reply = server.ask("/translate", urlencode(ASK).encode(), **headers)
        assert reply.status == (200 if expected else 403)

    def fail(*_):
        raise RuntimeError("a fault")

    broken = serve(site={"origins": [page], "markup": fail})
    reply = broken.ask("/translate", ASK | {"format": "html"}, Origin=page)
    assert (reply.status, reply.headers[allow]) == (500, page)
    assert reply.headers["access-control-expose-headers"] == "Retry-After"
    broken.until(lambda: any(each.name == "uvicorn.error" for each in caplog.records))
    caplog.clear()
    own = "http://{}:{}".format(*closed.address)
    headers = {"Content-Type": FORM, "Origin": own}
    assert closed.ask("/translate", urlencode(ASK).encode(), **headers).status == 200


def test_the_documentation_is_valid_and_has_every_route(serve):
    server = serve()
    described = server.ask("/openapi.json").values
    openapi_spec_validator.validate(described)
    routes = {
        (route.path, method.lower())
        for route in server.service.config.app._app.routes
        for method in route.methods - {"HEAD"}
        if not route.path.endswith((".css", ".js"))
    }
    paths = described["paths"]
    assert routes == {(path, method) for path in paths for method in paths[path]}
    own, other = paths["/translate"]["post"]["requestBody"]["content"][
        "application/json"
    ]["schema"]["oneOf"]
    for schema in (own, other):  # the examples are answered
        assert server.ask("/translate", schema["example"]).status == 200
    fields = {*own["properties"]} - {"api_key"}
    error = server.translate("a", unknown=1).values["error"]
    assert error.endswith("phrases, tag, sentences, markup")
    assert fields == {*error.partition("keys are ")[2].split(", ")}
    health = paths["/health"]["get"]["responses"]["200"]["content"]["application/json"]
    assert health["example"].keys() == server.ask("/health").values.keys()
