import pytest

from steelrail.formats.hostlist import compress, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ("node1",)),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("node[08-11]", ("node08", "node09", "node10", "node11")),
        ("a[1-2],b,c[3]-ib", ("a1", "a2", "b", "c3-ib")),
        ("rack[1-2]node[3-4]", ("rack1node3", "rack1node4", "rack2node3", "rack2node4")),
        ("(null)", ()),
        ("", ()),
        ("None assigned", ()),
    ],
)
def test_a_host_list_expands_in_its_order(text, hosts):
    assert expand(text) == hosts


def test_an_open_bracket_is_refused():
    with pytest.raises(ValueError, match="closed brackets"):
        expand("node[1-3")


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        (["node2", "node1", "node3"], "node[1-3]"),
        (["node9", "node10", "node1"], "node[1,9-10]"),
        (["n08", "n09", "n10"], "n10,n[08-09]"),
        (["gpu", "node1"], "gpu,node1"),
        ([], ""),
    ],
)
def test_hosts_compress_to_the_shortest_sorted_list(hosts, text):
    assert compress(hosts) == text


def test_what_compress_writes_expand_reads_back():
    hosts = {f"node{number}" for number in (1, 2, 3, 5, 8, 13, 100)} | {"login", "n007", "n008"}
    assert set(expand(compress(hosts))) == hosts
