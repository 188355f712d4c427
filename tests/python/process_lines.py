"""What both kinds of started program share: their output, line by line as it comes."""

import threading


class ProcessLines:
    """For a class with a `process` whose output is piped: call read_lines() once it is started.
    `out` and `err` grow under `_changed`, which is told of each line and of each end."""

    def read_lines(self):
        self.out, self.err = [], []
        self._changed = threading.Condition()
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in
                         ((self.process.stdout, self.out), (self.process.stderr, self.err))]
        for reader in self._readers:
            reader.start()

    def _read(self, stream, lines):
        for line in stream:
            with self._changed:
                lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()
