"""Reads a Parquet or Arrow file from standard input for pt-prepare, and writes columns of it to standard
output. This file is inside pt-prepare, which starts it as `python3 -c`:

    KIND parquet | file | stream      Parquet, an Arrow (Feather) file, or an Arrow stream
         pipe                         a stream whose first bytes are in the file of descriptor 3
    CONTENT text | record             one column of texts, or a structure of columns
    +NAME, /NAME, ?NAME ...           columns: required, at least one required, or optional

The output has chunks. All integers have 64 bits, little-endian.

    1, rows, bytes of the input read so far, COLUMN
    2, exit code, bytes, message                       the last chunk: an error
    3                                                  the last chunk: the end

A COLUMN is its type, its rows, and
    1 text     lengths (-1: null, -2: too long, and left out), bytes, the bytes
    2 integer, 3 float, 4 boolean      for each row a byte, 0: null; values of 64 bits
    5 list     lengths (-1: null), the COLUMN of all elements
    6 structure, with a byte per row, 0: null; number of fields; for each: bytes of its name, the name, its COLUMN
    7 null
"""
import sys

sys.path[:] = [path for path in sys.path if path]  # no modules from the working directory
import io
import os
import queue
import signal
import struct
import threading

EX_DATAERR, EX_UNAVAILABLE = 65, 69
MAX_ROW = 32 << 20  # bytes; the limit of a line of JSONL
BATCH_BYTES = 1 << 20  # of a chunk; more does not fit into the cache
CHUNK_BYTES = 8 << 20
CHUNK_ROWS = 8192
out = os.fdopen(os.dup(1), "wb", 1 << 20)


class TableError(Exception):
    """An error whose message says everything."""


def put(*integers):
    out.write(struct.pack("<%dq" % len(integers), *integers))


def put_values(array):
    """Writes the values of an array without nulls."""
    width = array.type.bit_width // 8
    if len(array):
        out.write(memoryview(array.buffers()[1])[array.offset * width : (array.offset + len(array)) * width])


def put_validity(array):
    put_values(array.is_valid().cast("uint8"))


def put_text(array):
    array = array.cast(pyarrow.large_binary())
    lengths = compute.fill_null(compute.binary_length(array), -1)
    longest = compute.max(lengths).as_py()
    if longest is not None and longest > MAX_ROW:
        is_long = compute.greater(lengths, MAX_ROW)
        array = compute.if_else(is_long, pyarrow.scalar(b"", array.type), array)
        lengths = compute.if_else(is_long, -2, lengths)
    if array.null_count:
        array = compute.fill_null(array, b"")
    put_values(lengths)
    if not len(array):
        put(0)
        return
    _, offsets, data = array.buffers()
    ends = memoryview(offsets)[array.offset * 8 : (array.offset + len(array) + 1) * 8].cast("q")
    put(ends[-1] - ends[0])
    if ends[-1] > ends[0]:
        out.write(memoryview(data)[ends[0] : ends[-1]])


def is_text(kind):
    types = pyarrow.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    names = ["is_string", "is_large_string", "is_binary", "is_large_binary", "is_string_view", "is_binary_view"]
    return any(getattr(types, name)(kind) for name in names if hasattr(types, name))


def put_column(array):
    types = pyarrow.types
    if isinstance(array, pyarrow.ExtensionArray):
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if is_text(kind):
        put(1, len(array))
        put_text(array)
    elif types.is_integer(kind) or types.is_boolean(kind):
        put(4 if types.is_boolean(kind) else 2, len(array))
        put_validity(array)
        put_values(compute.fill_null(array.cast("int64"), 0))
    elif types.is_floating(kind):
        put(3, len(array))
        put_validity(array)
        put_values(compute.fill_null(array.cast("float64"), 0.0))
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        put(5, len(array))
        put_values(compute.fill_null(compute.list_value_length(array).cast("int64"), -1))
        put_column(array.flatten())
    elif types.is_struct(kind):
        put(6, len(array))
        put_validity(array)
        put(kind.num_fields)
        for field, child in zip(kind, array.flatten()):
            name = field.name.encode()
            put(len(name))
            out.write(name)
            put_column(child)
    elif types.is_null(kind):
        put(7, len(array))
    else:
        put_column(array.cast("string"))  # times, decimal numbers


def put_rows(table, content, position):
    """Writes the rows of a record batch as chunks of limited size."""
    n = table.num_rows
    if n > CHUNK_ROWS or (n > 1 and table.nbytes > CHUNK_BYTES):
        half = n // 2
        put_rows(table.slice(0, half), content, position)
        put_rows(table.slice(half), content, position)
        return
    put(1, n, position)
    if content == "text":
        put_column(table.column(0))
        return
    put(6, n)
    out.write(b"\1" * n)
    put(table.num_columns)
    for field, array in zip(table.schema, table.columns):
        name = field.name.encode()
        put(len(name))
        out.write(name)
        put_column(array)


def choose_columns(schema, content, words):
    """Returns the names of the columns to read."""
    wanted = [(word[0], word[1:]) for word in words]
    missing = [name for sign, name in wanted if sign == "+" and name not in schema.names]
    if_any = [name for sign, name in wanted if sign == "/"]
    if if_any and not set(if_any) & set(schema.names):
        missing += if_any[:1]
    if missing and content == "text" and {"messages", "conversations"} & set(schema.names):
        raise TableError("column '%.40s' is missing, but the table has conversations; give --chat-template" % missing[0])
    if missing:
        raise TableError("column '%.40s' is missing; give --field with one of: %.200s" % (missing[0], ", ".join(schema.names)))
    names = [name for _, name in wanted if name in schema.names]
    for name in names:
        if schema.names.count(name) > 1:
            raise TableError("the table has two columns '%.40s'" % name)
    if content == "text" and not is_text(schema.field(names[0]).type):
        raise TableError("column '%.40s' is %.80s, not text" % (names[0], schema.field(names[0]).type))
    return names


def read_ahead(items):
    """Yields the items of an iterator that runs in another thread, a few of them early."""
    done, waiting = object(), queue.Queue(4)

    def run():
        try:
            for item in items:
                waiting.put(item)
            waiting.put(done)
        except BaseException as error:
            waiting.put(error)

    threading.Thread(target=run, daemon=True).start()
    while True:
        item = waiting.get()
        if item is done:
            return
        if isinstance(item, BaseException):
            raise item
        yield item


def read_parquet(source, content, words):
    """Yields the rows of a Parquet file, and how many bytes of it were read."""
    from pyarrow import parquet

    # (with buffer_size, a column of a row group is read in parts)
    table = parquet.ParquetFile(source, buffer_size=1 << 20, pre_buffer=False)
    names = choose_columns(table.schema_arrow, content, words)
    position = 0
    for i in range(table.num_row_groups):
        group = table.metadata.row_group(i)
        n_bytes = 0
        for k in range(group.num_columns):
            column = group.column(k)
            if column.path_in_schema.split(".")[0] in names:
                n_bytes += column.total_uncompressed_size
            position += column.total_compressed_size
        rows = BATCH_BYTES * group.num_rows // max(n_bytes, 1)
        for batch in table.iter_batches(min(max(rows, 16), CHUNK_ROWS), row_groups=[i], columns=names, use_threads=False):
            yield batch.select(names), position


def read_arrow(source, kind, content, words):
    """Yields the rows of an Arrow file or stream, and how many bytes of it were read."""
    if kind == "file":
        table = pyarrow.ipc.open_file(source)
        batches = map(table.get_batch, range(table.num_record_batches))
    else:
        batches = table = pyarrow.ipc.open_stream(source)
    names = choose_columns(table.schema, content, words)
    for batch in batches:
        chosen = pyarrow.RecordBatch.from_arrays([batch.column(table.schema.get_field_index(n)) for n in names], names)
        yield chosen, source.tell() if source.seekable() else 0


class Pipe(io.RawIOBase):
    """The bytes of descriptor 3, then of standard input."""

    source = 3

    def readable(self):
        return True

    def readinto(self, buffer):
        n = os.readv(self.source, [buffer])
        if not n and self.source:
            self.source = 0
            n = os.readv(0, [buffer])
        return n


def fail(code, message):
    message = message.encode("utf-8", "replace")[:500]
    put(2, code, len(message))
    out.write(message)


def main(kind, content, *words):
    global pyarrow, compute
    try:
        import pyarrow
        import pyarrow.compute as compute
    except ImportError as error:
        return fail(EX_UNAVAILABLE, "pyarrow reads Parquet and Arrow files, but %s cannot import it (%s); install it with "
                    "\"pip install pyarrow\", or set PT_PYTHON to a python3 that has it" % (sys.executable, error))
    try:
        source = io.BufferedReader(Pipe(), 1 << 18) if kind == "pipe" else pyarrow.OSFile("/dev/fd/0")
        rows = read_parquet(source, content, words) if kind == "parquet" else read_arrow(source, kind, content, words)
        for batch, position in read_ahead(rows):
            put_rows(batch, content, position)
        put(3)
    except TableError as error:
        fail(EX_DATAERR, str(error))
    except MemoryError as error:
        fail(EX_UNAVAILABLE, "pyarrow: out of memory: %s" % error)
    except Exception as error:
        fail(EX_DATAERR, "pyarrow: %s" % " ".join(str(error).split()))


for number in (signal.SIGPIPE, signal.SIGINT):
    signal.signal(number, signal.SIG_DFL)
main(*sys.argv[1:])
out.flush()
