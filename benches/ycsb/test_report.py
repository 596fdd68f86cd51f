"""Tests of what needs no server: how sizes are read, points chosen, and tables, bars and plots made."""

import importlib.machinery
import importlib.util
import sys
import unittest
import xml.etree.ElementTree
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE))

import report  # noqa: E402

LOADER = importlib.machinery.SourceFileLoader("run", str(HERE / "run"))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", LOADER))
LOADER.exec_module(run)


def results(rates):
    """Of {(peer, records): operations a second}."""
    rows = [{"mode": "safe", "bytes": 1024, "peer": peer, "workload": "write only", "records": records,
             "per_second": rate, "server_us": 10.0, "client_us": 9.0, "p50_us": 1, "p99_us": 2, "load": 1.5}
            for (peer, records), rate in rates.items()]
    return {"date": "2026-11-29", "commit": "abc", "esker": "esker 0", "cores": 2, "memory_bytes": 1 << 30,
            "kernel": "6", "threads": 8, "seconds": 1, "cache_bytes": 1 << 30, "recent_bytes": 1 << 30,
            "cassandra_heap": "4g",
            "peers": ["esker", "kyoto"],
            "insert_order": "ordered", "distribution": "uniform", "rows": rows,
            "space": [{"mode": "safe", "bytes": 1024, "peer": "kyoto", "records": 100, "used_bytes": 153600}],
            "failed": []}


def row_of(text, begin):
    return next(line for line in text.splitlines() if line.startswith(begin))


class Given(unittest.TestCase):
    def test_sizes_are_of_1024_and_records_of_1000(self):
        self.assertEqual(run.sizes("1k:10m,4k:250k"), [(1024, 10_000_000), (4096, 250_000)])

    def test_what_is_no_number_is_refused(self):
        for text in ("1x:10", "1k:", "0:10", "1k", "-1:10", ""):
            with self.subTest(text), self.assertRaises(run.argparse.ArgumentTypeError):
                run.sizes(text)

    def test_the_last_point_is_the_whole(self):
        self.assertEqual(run.points(10, 5), [2, 4, 6, 8, 10])
        self.assertEqual(run.points(7, 3), [2, 4, 7])
        self.assertEqual(run.points(2, 5), [1, 2])


class Told(unittest.TestCase):
    def test_ratios_are_esker_by_the_peer_and_the_least_is_told(self):
        text = report.tables(results({("esker", 50): 300.0, ("kyoto", 50): 100.0, ("esker", 100): 150.0,
                                      ("kyoto", 100): 200.0}))
        self.assertIn("| 3.00 |", row_of(text, "| write only | 50 |"))
        self.assertIn("| 0.75 |", row_of(text, "| write only | 100 |"))
        self.assertTrue(text.splitlines()[-1].startswith("Space at the end, over payload: kyoto 1.50."))
        self.assertEqual(row_of(text, "| write only | 0.50 |"),
                         "| write only | 0.50 | 2.00 | 0.75 (kyoto, 100) | not ahead, not flat |")

    def test_bars_are_met_at_every_point_or_not(self):
        text = report.tables(results({("esker", 50): 300.0, ("kyoto", 50): 100.0, ("esker", 100): 270.0,
                                      ("kyoto", 100): 100.0}))
        self.assertIn("| ahead, flat |", text)

    def test_one_point_is_not_flat(self):
        text = report.tables(results({("esker", 50): 300.0, ("kyoto", 50): 100.0}))
        self.assertEqual(row_of(text, "| write only | –"), "| write only | – | – | 3.00 (kyoto, 50) | ahead |")

    def test_what_failed_is_told(self):
        failed = {"mode": "safe", "bytes": 1024, "peer": "kyoto", "error": "no room"}
        text = report.tables({**results({("esker", 50): 300.0}), "failed": [failed]})
        self.assertEqual(text.splitlines()[-1], "**Failed**: kyoto, safe, 1 KiB: no room")

    def test_a_point_that_was_not_measured_is_a_dash(self):
        text = report.tables(results({("esker", 50): 300.0, ("kyoto", 50): 100.0, ("esker", 100): 300.0}))
        self.assertIn("| 300 | – | – | 10.0 | – |", row_of(text, "| write only | 100 |"))

    def test_a_plot_is_xml_with_a_point_for_each_rate(self):
        found = {"esker": [(50, 300.0), (100, 150.0)], "kyoto": [], "cassandra": [(50, 1.0)]}
        drawn = xml.etree.ElementTree.fromstring(report.drawn("<&> is not markup", found))
        named = lambda name: drawn.findall("{http://www.w3.org/2000/svg}" + name)
        self.assertEqual((len(named("circle")), len(named("polyline"))), (3, 2))
        heights = [float(circle.get("cy")) for circle in named("circle")]
        self.assertLess(heights[0], heights[1])
        self.assertLess(heights[1], heights[2])


if __name__ == "__main__":
    unittest.main()
