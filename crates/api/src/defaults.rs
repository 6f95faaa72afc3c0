//! Defaults of fields that are neither zero nor empty, for serde and for the schemas.

pub const fn yes() -> bool {
    true
}

pub const fn number<const N: i32>() -> i32 {
    N
}
