//! Serves a disk in memory by NBD, for trying clients out: `cargo run -p esker-server --example nbd_memory --
//! 127.0.0.1:10809 64`.
//!
//! Arguments: the address, and the size in MiB.

use std::sync::Arc;

use esker_server::nbd::{Config, MemoryDisk, MemoryDisks, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:10809".into()).parse()?;
    let mib: u64 = arguments.next().as_deref().unwrap_or("64").parse()?;
    let disks = MemoryDisks(vec![("disk".into(), Arc::new(MemoryDisk::new(mib << 20)))]);
    let server = Server::bind(Config { listen: vec![address], ..Config::default() }, Arc::new(disks))?;
    for address in server.addresses() {
        println!("{address}/disk");
    }
    Ok(server.run()?)
}
