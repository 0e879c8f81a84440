"""Which hosts count as public, against IANA's registries, and which URLs nothing can be sent to."""

import ipaddress
import random

import pytest

from h3serve.media.sources.ssrf_rules import is_public, url_problem

# https://www.iana.org/assignments/iana-ipv4-special-registry and …-ipv6-special-registry: every block that is not
# "globally reachable", the deprecated ones, and multicast; written down from there, not from our own table.
NOT_PUBLIC = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "::/128",
    "::1/128",
    "::/96",  # IPv4-compatible, deprecated by RFC 4291
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/32",  # Teredo
    "2001:2::/48",  # benchmarking
    "2001:10::/28",  # ORCHID
    "2001:db8::/32",
    "2002::/16",  # 6to4
    "3fff::/20",
    "5f00::/16",  # segment routing
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",  # site-local, deprecated by RFC 3879
    "ff00::/8",
]
BLOCKS = [ipaddress.ip_network(block) for block in NOT_PUBLIC]
PRIVATE_V4 = ["127.0.0.1", "10.0.0.7", "169.254.169.254", "100.64.0.1", "224.0.0.1", "0.0.0.0", "198.18.0.1"]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_no_address_of_a_special_block_is_public(block: ipaddress.IPv4Network | ipaddress.IPv6Network) -> None:
    first, last = int(block[0]), int(block[-1])
    inside = [first, last, *(random.Random(str(block)).randint(first, last) for _ in range(50))]
    for number in inside:
        assert not is_public(str(type(block[0])(number)))


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.version == 4], ids=str)
def test_blocks_of_ipv4_end_where_they_end(block: ipaddress.IPv4Network) -> None:
    """A mask that is a bit too short would refuse half a continent."""
    for number in (int(block[0]) - 1, int(block[-1]) + 1):
        if 0 <= number < 2**32:
            outside = ipaddress.IPv4Address(number)
            assert is_public(str(outside)) != any(outside in other for other in BLOCKS if other.version == 4)


@pytest.mark.parametrize("address", PRIVATE_V4)
@pytest.mark.parametrize(
    "form", ["::ffff:{}", "64:ff9b::{}", "64:ff9b:1::{}", "::{}", "::ffff:0:{}", "2002:{hex}::", "2001:0:{hex}::1"]
)
def test_no_wrapping_of_ipv4_hides_a_private_address(form: str, address: str) -> None:
    packed = f"{int(ipaddress.IPv4Address(address)):08x}"
    assert not is_public(form.format(address, hex=f"{packed[:4]}:{packed[4:]}"))


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "9.255.255.255",
        "223.255.255.255",
        "2606:4700:4700::1111",
        "2001:4860:4860::8888",  # beside 2001::/23
        "2a00:1450:4001::1",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",  # what DNS64 answers in a network without IPv4
    ],
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def test_the_cloud_s_own_address_and_zones() -> None:
    assert not is_public("168.63.129.16") and not is_public("fe80::1%eth0")


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "https://example.com:65535/a?b=c#d",
        "HTTPS://EXAMPLE.COM:1/",
        "https://bücher.example/ü",
        "https://xn--bcher-kva.example/",
        "https://snow_flake.example.",
        "http://8.8.8.8/",
        "http://[2606:4700:4700::1111]:8080/",
    ],
)
def test_urls_that_can_be_reached(url: str) -> None:
    assert url_problem(url) is None


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("ftp://example.com/", "not http"),
        ("file:///etc/passwd", "not http"),
        ("example.com", "not http"),
        ("", "not http"),
        ("http://", "not a host name"),
        ("http:example.com", "not a host name"),
        ("http://a b/", "not a host name"),
        ("http://-a.example/", "not a host name"),
        ("http://a..example/", "not a host name"),
        (f"http://{'a' * 64}.example/", "not a host name"),
        ("http://" + ".".join(["a" * 60] * 5) + "/", "not a host name"),
        ("http://example.com:0/", "no port 0"),
        ("http://example.com:65536/", "no port 65536"),
        ("http://example.com:99999/", "no port 99999"),
        ("http://example.com:http/", "it is not"),
        ("http://me:word@example.com/", "user name or password"),
        ("http://me@example.com/", "user name or password"),
        ("http://256.1.1.1/", "it is not"),
        ("http://☃☃.example/", "it is not"),  # IDNA 2008 has no snowmen
        ("http://x/\ud800", "it is not"),
        ("http://x\n/", "it is not"),
        ("http://x/" + "a" * 2000, "2009 characters"),
    ],
)
def test_urls_that_can_never_be_reached(url: str, match: str) -> None:
    for private in (True, False):
        assert match in (url_problem(url, private=private) or "")


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "0x7f.1",
        "2130706433",
        "017700000001",
        "0",
        "10.1.2.3",
        "169.254.169.254",
        "localhost",
        "LocalHost.",
        "a.localhost",
        "[::1]",
        "[::]",
        "[::ffff:10.0.0.1]",
        "[fe80::1]",
        "[64:ff9b:1::8.8.8.8]",
    ],
)
def test_hosts_that_say_themselves_that_they_are_private(host: str) -> None:
    assert "sends no requests" in (url_problem(f"http://{host}:8080/hook") or "")
    assert url_problem(f"http://{host}:8080/hook", private=True) is None
