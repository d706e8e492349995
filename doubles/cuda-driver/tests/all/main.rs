//! The tests of the double, as one program: linking one for each file took longer than the tests.

mod batches;
mod captures;
mod common;
mod contexts;
mod copies;
mod events;
mod external;
mod fork;
mod host;
mod ipc;
mod library;
mod managed;
mod memory;
mod memset;
mod page_tables;
mod peers;
mod pitched;
mod pointers;
mod pool_order;
mod pool_sharing;
mod pools;
mod ruin;
mod semaphores;
mod streams;
mod vmm;
