//! What a program's file says about where it runs.

use anyhow::{Context as _, Result, bail, ensure};

/// ELF(5): `PT_INTERP`, the segment that names the dynamic loader.
const INTERPRETER: u32 = 3;

/// Whether a program needs libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Linking {
    Static,
    Dynamic,
}

/// Makes sure that a program needs no library, and gives the architecture that it is for, as images name it.
pub fn static_architecture(program: &[u8]) -> Result<&'static str> {
    let (architecture, linking) = examine(program)?;
    ensure!(linking == Linking::Static, "not static, and an image has no libraries");
    Ok(architecture)
}

/// The architecture that a program is for, and whether it needs libraries.
pub fn examine(program: &[u8]) -> Result<(&'static str, Linking)> {
    ensure!(program.starts_with(b"\x7fELF"), "no ELF program");
    // 64-bit and little-endian, as all that we build for.
    ensure!(bytes(program, 4)? == [2, 1], "no 64-bit little-endian program");
    let architecture = match u16::from_le_bytes(bytes(program, 0x12)?) {
        0x3e => "amd64",
        0xb7 => "arm64",
        machine => bail!("for the machine {machine:#x}, which our images are not for"),
    };
    let table = usize::try_from(u64::from_le_bytes(bytes(program, 0x20)?))?;
    let size = usize::from(u16::from_le_bytes(bytes(program, 0x36)?));
    let mut linking = Linking::Static;
    for number in 0..usize::from(u16::from_le_bytes(bytes(program, 0x38)?)) {
        let place = size.checked_mul(number).and_then(|offset| offset.checked_add(table));
        let kind = u32::from_le_bytes(bytes(program, place.context("a table beyond the end")?)?);
        if kind == INTERPRETER {
            linking = Linking::Dynamic;
        }
    }
    Ok((architecture, linking))
}

fn bytes<const COUNT: usize>(program: &[u8], at: usize) -> Result<[u8; COUNT]> {
    let found = program.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().context("ends too early")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_is_distinguished_from_one_without() {
        let shell = std::fs::read("/bin/sh").unwrap();
        let error = static_architecture(&shell).unwrap_err().to_string();
        assert_eq!(error, "not static, and an image has no libraries");

        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let expected = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        assert_eq!(static_architecture(&own).unwrap(), expected);

        for cut in [0, 3, 5, 0x30, 0x39, 0x50] {
            assert!(static_architecture(&own[..cut]).is_err(), "{cut}");
        }
        assert!(static_architecture(b"#!/bin/sh\n").is_err());
    }
}
