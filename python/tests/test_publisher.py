"""python3 -m unittest discover -s python/tests -t python"""

import json
import os
import socket
import tempfile
import threading
import unittest

from kvatlas_publisher import Publisher


class Sidecar:
    """A listener that takes messages as kvpublisher does."""

    def __init__(self, path):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen()

    def accept(self, next_number):
        conn, _ = self.listener.accept()
        conn.settimeout(20)
        lines = conn.makefile("rb")
        hello = json.loads(lines.readline())
        self.tell(conn, {"type": "welcome", "next": next_number})
        return conn, lines, hello

    @staticmethod
    def tell(conn, message):
        conn.sendall((json.dumps(message) + "\n").encode())


class PublisherTest(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.path = os.path.join(self.dir.name, "s")
        self.sidecar = Sidecar(self.path)
        self.addCleanup(self.dir.cleanup)
        self.addCleanup(self.sidecar.listener.close)

    def test_messages_come_in_order_with_their_fields(self):
        p = Publisher(self.path, dp_rank=3, run="r", count_copies=True)
        conn, lines, hello = self.sidecar.accept(0)
        self.assertEqual(hello, {"type": "hello", "version": 1, "run": "r", "dp_rank": 3, "count_copies": True})
        p.stored([1, -2], [5] * 8, parent=9, lora="sql", salt="t")
        p.stored([3], local_hashes=[4], tier="disk")
        p.removed([1])
        p.cleared()
        have = [json.loads(lines.readline()) for _ in range(4)]
        self.assertEqual(have, [
            {"type": "stored", "seq": 0, "hashes": [1, -2], "tokens": [5] * 8, "parent": 9, "tier": "device", "lora": "sql", "salt": "t"},
            {"type": "stored", "seq": 1, "hashes": [3], "local_hashes": [4], "tier": "disk"},
            {"type": "removed", "seq": 2, "hashes": [1], "tier": "device"},
            {"type": "cleared", "seq": 3},
        ])
        self.assertTrue(p.close())
        self.assertEqual(lines.readline(), b"")
        conn.close()
        with self.assertRaises(ValueError):
            p.cleared()

    def test_what_was_not_kept_is_sent_again(self):
        p = Publisher(self.path)
        for i in range(10):
            p.removed([i])
        conn, lines, first = self.sidecar.accept(0)
        for _ in range(10):
            lines.readline()
        self.sidecar.tell(conn, {"type": "kept", "next": 4})
        conn.shutdown(socket.SHUT_RDWR)
        conn.close()
        lines.close()
        conn, lines, again = self.sidecar.accept(6)
        self.assertEqual(first["run"], again["run"])
        p.removed([10])
        have = [json.loads(lines.readline())["seq"] for _ in range(5)]
        self.assertEqual(have, [6, 7, 8, 9, 10])
        self.assertTrue(p.close())
        conn.close()

    def test_a_full_queue_leaves_a_hole(self):
        p = Publisher(self.path, queue=3)
        for i in range(10):
            p.removed([i])
        conn, lines, _ = self.sidecar.accept(0)
        have = [json.loads(lines.readline())["seq"] for _ in range(3)]
        self.assertEqual(have, [7, 8, 9])
        self.assertEqual(p.dropped, 7)
        self.assertTrue(p.close())
        conn.close()

    def test_errors_are_told(self):
        told = threading.Event()
        p = Publisher(self.path, log=lambda text: told.set())
        conn, _, _ = self.sidecar.accept(0)
        self.sidecar.tell(conn, {"type": "error", "error": "no"})
        self.assertTrue(told.wait(20))
        self.assertEqual(p.errors, 1)
        self.assertTrue(p.close())
        conn.close()


if __name__ == "__main__":
    unittest.main()
