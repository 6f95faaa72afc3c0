//! The smoke suite of the test cluster itself; the tests are in `tests/it`.
