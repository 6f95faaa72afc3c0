//! A whole run: the real bridge as a process, a real gateway with the run API, a model server, volumes of skills, and an agent
//! that says what the test wants.

mod acting;
mod active_skill;
mod agent;
mod asking;
mod calling;
mod ending;
mod floor;
mod foreign;
mod harness;
mod hostile_agent;
mod hostile_agent_asking;
mod hostile_agent_frames;
mod hostile_agent_memory;
mod hostile_skill;
mod hostile_skill_silence;
mod key;
mod modelling;
mod real_sidecar;
mod seed_executor;
mod skills;
