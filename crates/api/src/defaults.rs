//! Defaults of fields that are neither zero nor empty. Serde and the schema take them from here.

pub const fn yes() -> bool {
    true
}

pub const fn number<const N: i32>() -> i32 {
    N
}
