"""What benchmarks run: conversations and programs as data, without I/O."""
