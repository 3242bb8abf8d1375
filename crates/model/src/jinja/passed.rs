//! Arguments that a call passes.

use std::sync::Arc;

use super::limits::Fault;
use super::value::Value;

/// The evaluated arguments of a call.
#[derive(Debug, Default, Clone)]
pub struct Passed {
    /// By position.
    pub positional: Vec<Value>,
    /// By name.
    pub named: Vec<(Arc<str>, Value)>,
}

impl Passed {
    /// Binds the arguments to parameters with these names. The first `required` must be passed. A parameter with an empty name can only
    /// be passed by position.
    ///
    /// # Errors
    /// Too many, too few or unknown arguments; `what` names the function.
    pub fn bind<const N: usize>(
        self,
        what: &str,
        names: [&str; N],
        required: usize,
    ) -> Result<[Option<Value>; N], Fault> {
        let given = self.positional.len();
        if given > N {
            return Err(Fault::new(format!("{what}() takes at most {N} arguments ({given} given)")));
        }
        let mut bound = [const { None }; N];
        for (place, value) in bound.iter_mut().zip(self.positional) {
            *place = Some(value);
        }
        for (name, value) in self.named {
            match names.iter().position(|known| !known.is_empty() && **known == *name) {
                Some(place) if bound[place].is_none() => bound[place] = Some(value),
                Some(_) => return Err(Fault::new(format!("{what}() got multiple values for argument '{name}'"))),
                None => return Err(Fault::new(format!("{what}() got an unexpected keyword argument '{name}'"))),
            }
        }
        match bound[..required].iter().any(Option::is_none) {
            true => Err(Fault::new(format!("{what}() needs {required} arguments"))),
            false => Ok(bound),
        }
    }
}

/// A string argument.
///
/// # Errors
/// If it is something else.
pub fn text_of(what: &str, value: &Value) -> Result<Arc<str>, Fault> {
    match value.used()? {
        Value::Text(text) => Ok(Arc::clone(text)),
        other => Err(Fault::new(format!("{what} must be str, not {}", other.type_name()))),
    }
}

/// A string argument; `None` if it is missing or none.
///
/// # Errors
/// If it is something else.
pub fn optional_text(what: &str, value: Option<&Value>) -> Result<Option<Arc<str>>, Fault> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(value) => text_of(what, value).map(Some),
    }
}

/// An integer argument.
///
/// # Errors
/// If it is something else.
pub fn int_of(value: &Value) -> Result<i128, Fault> {
    value
        .used()?
        .as_int()
        .ok_or_else(|| Fault::new(format!("'{}' object cannot be interpreted as an integer", value.type_name())))
}

/// An integer argument; `default` if it is missing.
///
/// # Errors
/// If it is something else.
pub fn int_or(value: Option<&Value>, default: i128) -> Result<i128, Fault> {
    value.map_or(Ok(default), int_of)
}
