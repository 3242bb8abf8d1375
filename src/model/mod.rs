//! The model: where it comes from, its configuration and weights, its tokenizer and its forward pass.
//!
//! A model is a Llama-family decoder (Llama, Mistral, Qwen2, Qwen3) in the layout of a Hugging Face
//! checkpoint. Nothing here knows a task or a run; attention methods come from the floor below.

pub mod chat;
pub mod config;
pub mod decoder;
pub mod hub;
pub mod linear;
pub mod rope;
pub mod source;
pub mod tokenizer;
pub mod weights;
