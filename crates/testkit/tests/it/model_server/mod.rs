//! The model server, seen from the other end of a socket.

mod anthropic;
mod client;
mod openai;
mod record;
mod refusals;
mod script;
mod tls;
