mod agreement;
mod cases;
mod objects;
mod properties;
mod scenarios;
mod world;
