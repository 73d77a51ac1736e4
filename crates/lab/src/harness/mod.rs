//! What tests, benchmarks and demonstrations are made of: processes, waiting, tables, the machine.

pub mod cleanup;
pub mod clock;
pub mod cpu;
pub mod engines;
pub mod held_machine;
pub mod limits;
pub mod operator_shell;
pub mod plot;
pub mod process;
pub mod table;
pub mod verify_bpf;
pub mod wait;
