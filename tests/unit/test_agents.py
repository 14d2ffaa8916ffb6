"""User agents, languages, referrers and campaigns: what the words of a browser mean."""

import random
import re

import crawleruseragents  # type: ignore[import-untyped]
import pytest

from refract.services.analytics.adapters.agents import UNKNOWN, Agents
from refract.services.analytics.domain.campaigns import NONE, campaign_of
from refract.services.analytics.domain.languages import language_of
from refract.services.analytics.domain.referrers import host_of

IPHONE = "Mozilla/5.0 (iPhone; CPU iPhone OS 17_2 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.2"
ANDROID = "Mozilla/5.0 (Linux; Android 14; SM-S918B) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0.0.0"
LINUX = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)"


@pytest.fixture(scope="module")
def agents() -> Agents:
    return Agents()


@pytest.mark.parametrize(
    ("text", "agent"),
    [
        ("", UNKNOWN),
        (f"{IPHONE} Mobile/15E148 Safari/604.1", ("Mobile Safari 17", "iOS 17", "mobile", False)),
        (
            "Mozilla/5.0 (iPad; CPU OS 16_6 like Mac OS X) AppleWebKit/605 Version/16.6 Mobile/15E148 Safari/604",
            ("Mobile Safari 16", "iOS 16", "tablet", False),
        ),
        (f"{ANDROID} Mobile Safari/537.36", ("Chrome Mobile 120", "Android 14", "mobile", False)),
        (f"{ANDROID} Safari/537.36", ("Chrome 120", "Android 14", "tablet", False)),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605 Version/17.2 Safari/605",
            ("Safari 17", "macOS", "desktop", False),
        ),
        (
            "Mozilla/5.0 (X11; Ubuntu; Linux x86_64; rv:121.0) Gecko/20100101 Firefox/121.0",
            ("Firefox 121", "Ubuntu", "desktop", False),
        ),
        (
            "Mozilla/5.0 (Linux; Android 9; BRAVIA 4K VH2) AppleWebKit/537 (KHTML) Chrome/113.0 Safari/537",
            ("Chrome 113", "Android 9", "desktop", False),
        ),
        (f"{LINUX} HeadlessChrome/120.0.0.0 Safari/537.36", ("HeadlessChrome 120", "Linux", "bot", True)),
        ("curl/8.4.0", ("curl 8", "", "bot", True)),
        (
            "Mozilla/5.0 (PlayStation; PlayStation 5/6.00) AppleWebKit/605 (KHTML, like Gecko) Version/13.0 Safari/605",
            ("Safari 13", "", "desktop", False),
        ),
        ("Dalvik/2.1.0 (Linux; U; Android 13; Pixel 7 Build/TQ3A)", ("Android 13", "Android 13", "mobile", False)),
        ("PostmanRuntime/7.36.0", ("PostmanRuntime 7", "", "desktop", False)),
        ("something/1.0", ("", "", "desktop", False)),
    ],
)
def test_an_agent_is_known_by_its_words(agents: Agents, text: str, agent: tuple[str, str, str, bool]) -> None:
    assert agents.agent_of(text) == agent


def test_every_crawler_of_the_list_is_a_bot(agents: Agents) -> None:
    instances = [text for it in crawleruseragents.CRAWLER_USER_AGENTS_DATA for text in it.get("instances", ())]

    assert len(instances) > 2_000
    assert [text for text in instances if not agents.agent_of(text)[3]] == []


def test_the_engine_in_rust_says_of_crawlers_what_the_package_says(agents: Agents) -> None:
    chance = random.Random(5)
    words = sorted(
        {word for it in crawleruseragents.CRAWLER_USER_AGENTS_DATA for word in re.findall(r"\w+", it["pattern"])}
    )
    for _ in range(300):
        text = "Mozilla/5.0 " + chance.choice(("/", " ", "; ")).join(chance.sample(words, 2)).swapcase() + "/1.0"
        assert agents.agent_of(text)[3] == crawleruseragents.is_crawler(text)


@pytest.mark.parametrize("version", ["9" * 5, "9" * 2_000, "0x1F", "\uff11\uff12"])
def test_a_version_that_cannot_be_makes_no_row_of_its_own(agents: Agents, version: str) -> None:
    browser = agents.agent_of(f"{LINUX} Chrome/{version}.0 Safari/537.36")[0]

    assert browser in {"Chrome", "Safari", "Chrome 0", ""}


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2_048,
        "Mozilla/5.0 " * 170,
        "Android " + "Build/" * 300,
        "\x01\x02\x1b[31m\u202e" * 200,
        "<script>alert(1)</script>",
        "'; DROP TABLE clicks; --",
        "{{7*7}}${jndi:ldap://x}",
        "A" * 2_048,
        "1.1.1.1." * 256,
    ],
)
def test_a_hostile_agent_is_an_agent_like_any_other(agents: Agents, text: str) -> None:
    browser, system, device, _ = agents.agent_of(text)

    assert len(browser) <= 200
    assert len(system) <= 200
    assert device in {"desktop", "mobile", "tablet", "bot"}


@pytest.mark.parametrize(
    ("accepted", "language"),
    [
        ("", ""),
        ("de", "de"),
        ("de-CH,de;q=0.9,en;q=0.8", "de-CH"),
        ("en;q=0.8,fr", "fr"),
        ("EN-us", "en-US"),
        ("zh-hant-tw", "zh-Hant-TW"),
        ("es-419", "es-419"),
        ("de-DE-1996", "de-DE"),
        ("en-US-x-private", "en-US"),
        (" fr ; q = 0.5 , it ; q=0.7 ", "it"),
        ("*", ""),
        ("*,de;q=0.1", "de"),
        ("de;q=0", ""),
        ("de;q=2,fr;q=0.5", "fr"),
        ("de;q=nan", "de"),
        (";q=1,,;,=", ""),
        ("deutsch", ""),
        ("d", ""),
        ("<b>", ""),
        ("é", ""),
        (",".join(["*"] * 16 + ["de"]), ""),
        ("x" * 100_000, ""),
        ("en-" * 50_000, ""),
    ],
)
def test_a_language_is_the_one_wanted_most(accepted: str, language: str) -> None:
    assert language_of(accepted) == language


@pytest.mark.parametrize(
    ("referer", "host"),
    [
        ("", ""),
        ("https://www.Example.com/path?q#f", "www.example.com"),
        ("http://example.com:8080", "example.com"),
        ("https://user:password@example.com/", "example.com"),
        ("https://example.com./", "example.com"),
        ("https://münchen.example/", "xn--mnchen-3ya.example"),
        ("http://[2001:db8::1]:80/", "[2001:db8::1]"),
        ("http://0x7f.1/", "127.0.0.1"),
        ("android-app://com.google.android.gm/", "com.google.android.gm"),
        ("  https://example.com", "example.com"),
        ("example.com", ""),
        ("https://", ""),
        ("https://exa mple.com", ""),
        ("https://[::1", ""),
        ("https://%zz/", ""),
        ("javascript:alert(1)", ""),
        ("data:text/html,x", ""),
        ("file:///etc/passwd", ""),
        ("ftp://files.example/", ""),
        ("chrome-extension://abcdef/page", ""),
        ("about:client", ""),
        ("\x00\x01", ""),
    ],
)
def test_a_referrer_is_the_host_of_a_page(referer: str, host: str) -> None:
    assert host_of(referer) == host


@pytest.mark.parametrize(
    ("query", "campaign"),
    [
        ("", NONE),
        ("a=b&utm=c&utm_sources=d", NONE),
        ("utm_source=a", ("a", "", "", "", "")),
        ("utm_source=a+b%20c&utm_medium=%C3%A9", ("a b c", "é", "", "", "")),
        ("UTM_Source=a&utm%5Fmedium=b", ("a", "b", "", "", "")),
        ("utm_source=first&utm_source=second", ("first", "", "", "", "")),
        ("utm_source=&utm_source=second", ("second", "", "", "", "")),
        ("utm_source", NONE),
        ("utm_source=%20%20", NONE),
        ("utm_source=%ff", ("\ufffd", "", "", "", "")),
        ("utm_source=%00", ("\ufffd", "", "", "", "")),
        ("utm_source=%ed%a0%80", ("\ufffd\ufffd\ufffd", "", "", "", "")),
        ("utm_source=%", ("%", "", "", "", "")),
        ("utm_source=a=b", ("a=b", "", "", "", "")),
        ("&&&=&utm_term=t&", ("", "", "", "t", "")),
        ("&".join(["x=y"] * 10_000 + ["utm_content=c"]), ("", "", "", "", "c")),
        ("utm_source=" + "%41" * 500, ("A" * 200, "", "", "", "")),
    ],
)
def test_a_campaign_is_read_from_the_query(query: str, campaign: tuple[str, ...]) -> None:
    assert campaign_of(query) == campaign
