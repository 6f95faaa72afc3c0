mod agreement;
mod cases;
mod harness;
mod objects;
mod properties;
mod scenarios;
