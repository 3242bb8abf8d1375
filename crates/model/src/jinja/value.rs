//! Values of templates: those of Python that a template can hold.
//!
//! Only namespaces and values with a state (loops, cyclers, generators) ever change, and none of them can be stored in a namespace, so no
//! value contains itself. Nesting is bounded when a value is made, so functions may recurse over values.
//!
//! The file is long because all operations on a value match on its kind: they are read together.

use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{self, Constant};
use super::lexer::is_space;
use super::limits::{Budget, Fault, VALUE_DEPTH, unsupported};

/// What one item of a list counts towards the budget.
const ITEM_BYTES: usize = 64;

/// A value.
#[derive(Debug, Clone)]
pub enum Value {
    /// A missing name or attribute, with the error message for its use.
    Undefined(Rc<str>),
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// A string.
    Text(Arc<str>),
    /// A string that is marked as safe HTML: it can only be printed.
    Safe(Arc<str>),
    /// A list.
    List(Rc<Items>),
    /// A tuple.
    Tuple(Rc<Items>),
    /// A dict.
    Dict(Rc<Dict>),
    /// A range: start, stop, step.
    Range(i128, i128, i128),
    /// Keys, values or items of a dict, with the name of Python's type.
    View(&'static str, Rc<Items>),
    /// A generator, which can be iterated once.
    Generator(Rc<Generator>),
    /// A namespace.
    Namespace(Rc<RefCell<Dict>>),
    /// A function of the environment, with its name.
    Function(&'static str),
    /// A bound method of a value.
    Method(Rc<(Value, &'static str)>),
    /// A macro or a call block's `caller`, with the scope in which it was defined.
    Macro(Arc<ast::Macro>, usize),
    /// The variable `loop`.
    Loop(Rc<Loop>),
    /// A cycler and its position.
    Cycler(Rc<(Items, Cell<usize>)>),
    /// A joiner, and whether it was called already.
    Joiner(Rc<(Arc<str>, Cell<bool>)>),
}

/// The items of a list or tuple.
#[derive(Debug)]
pub struct Items {
    /// The items.
    pub all: Vec<Value>,
    /// Whether this is a group of `groupby`, which has the attributes `grouper` and `list`.
    pub group: bool,
    depth: usize,
    changing: bool,
}

/// The items of a generator.
#[derive(Debug)]
pub struct Generator {
    /// The items that are left.
    pub left: RefCell<VecDeque<Value>>,
    depth: usize,
}

/// A dict, in the order of insertion.
#[derive(Debug, Default)]
pub struct Dict {
    /// Keys with their values.
    pub pairs: Vec<(Value, Value)>,
    places: HashMap<Key, usize>,
    depth: usize,
    changing: bool,
}

/// The state of a loop.
#[derive(Debug)]
pub struct Loop {
    /// All items.
    pub items: Vec<Value>,
    /// The index of the current item.
    pub at: Cell<usize>,
    /// How many recursive loops enclose it.
    pub depth: usize,
    /// The loop that a call of `loop` runs, and its scope.
    pub recursive: Option<(Arc<ast::For>, usize)>,
    /// The values that `changed` saw last.
    pub seen: RefCell<Option<Vec<Value>>>,
}

/// The key of a dict. Equal numbers are one key.
#[derive(Debug, PartialEq, Eq, Hash, Clone)]
pub enum Key {
    /// An undefined value.
    Undefined,
    /// `None`.
    None,
    /// An integer, a Boolean or a float without a fraction.
    Int(i128),
    /// The bits of any other float.
    Float(u64),
    /// A string.
    Text(Arc<str>),
    /// A tuple.
    Tuple(Vec<Key>),
}

impl From<&Constant> for Value {
    fn from(constant: &Constant) -> Self {
        match constant {
            Constant::None => Value::None,
            Constant::Bool(value) => Value::Bool(*value),
            Constant::Int(value) => Value::Int(*value),
            Constant::Float(value) => Value::Float(*value),
            Constant::Text(text) => Value::Text(Arc::clone(text)),
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Value::Bool(value)
    }
}

impl Items {
    /// Makes the items of a list or tuple.
    ///
    /// # Errors
    /// If there are too many, or they are too deep.
    pub fn new(all: Vec<Value>, budget: &Budget) -> Result<Self, Fault> {
        budget.make(all.len() * ITEM_BYTES + ITEM_BYTES)?;
        let depth = deeper(all.iter())?;
        let changing = all.iter().any(Value::changes);
        Ok(Self { all, group: false, depth, changing })
    }
}

/// The depth of a value that contains these.
fn deeper<'a>(all: impl Iterator<Item = &'a Value>) -> Result<usize, Fault> {
    match all.map(Value::depth).max().unwrap_or(0) {
        VALUE_DEPTH.. => Err(Fault::new(format!("values are nested more than {VALUE_DEPTH} deep"))),
        depth => Ok(depth + 1),
    }
}

impl Dict {
    /// Sets the value of a key.
    ///
    /// # Errors
    /// A value that cannot be a key, or a dict that becomes too deep or too large.
    pub fn set(&mut self, name: Value, value: Value, budget: &Budget) -> Result<(), Fault> {
        let key = name.key(budget)?;
        self.depth = self.depth.max(deeper([&name, &value].into_iter())?);
        self.changing |= value.changes();
        match self.places.get(&key) {
            Some(place) => self.pairs[*place].1 = value,
            None => {
                budget.make(3 * ITEM_BYTES)?;
                self.places.insert(key, self.pairs.len());
                self.pairs.push((name, value));
            }
        }
        Ok(())
    }

    /// The value of a key.
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.places.get(key).map(|place| &self.pairs[*place].1)
    }

    /// The value of a string key.
    pub fn get_text(&self, name: &str) -> Option<&Value> {
        self.get(&Key::Text(name.into()))
    }
}

impl Value {
    /// A string.
    pub fn text(text: &str) -> Self {
        Value::Text(text.into())
    }

    /// Makes a list.
    ///
    /// # Errors
    /// If there are too many items, or they are too deep.
    pub fn list(all: Vec<Value>, budget: &Budget) -> Result<Self, Fault> {
        Ok(Value::List(Rc::new(Items::new(all, budget)?)))
    }

    /// Makes a tuple.
    ///
    /// # Errors
    /// If there are too many items, or they are too deep.
    pub fn tuple(all: Vec<Value>, budget: &Budget) -> Result<Self, Fault> {
        Ok(Value::Tuple(Rc::new(Items::new(all, budget)?)))
    }

    /// Makes a generator.
    ///
    /// # Errors
    /// If there are too many items, or they are too deep.
    pub fn generator(all: Vec<Value>, budget: &Budget) -> Result<Self, Fault> {
        budget.make(all.len() * ITEM_BYTES)?;
        let depth = deeper(all.iter())?;
        Ok(Value::Generator(Rc::new(Generator { left: RefCell::new(all.into()), depth })))
    }

    /// The undefined value of a missing name.
    pub fn undefined(name: &str) -> Self {
        Value::Undefined(format!("'{}' is undefined", shortened(name)).into())
    }

    /// The undefined value of a missing attribute or item.
    pub fn no_attribute(&self, name: &str) -> Self {
        let owner = match self {
            Value::None => "None".to_owned(),
            other => format!("{} object", other.type_name()),
        };
        Value::Undefined(format!("'{owner}' has no attribute '{}'", shortened(name)).into())
    }

    /// Converts JSON. Numbers that are written as integers are integers.
    ///
    /// # Errors
    /// If it is too deep.
    pub fn from_json(json: &serde_json::Value, budget: &Budget) -> Result<Self, Fault> {
        Ok(match json {
            serde_json::Value::Null => Value::None,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
                (Some(value), _, _) => Value::Int(value.into()),
                (_, Some(value), _) => Value::Int(value.into()),
                (_, _, value) => Value::Float(value.unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::text(text),
            serde_json::Value::Array(all) => {
                let all = all.iter().map(|item| Self::from_json(item, budget)).collect::<Result<_, _>>()?;
                Value::list(all, budget)?
            }
            serde_json::Value::Object(map) => {
                let mut dict = Dict::default();
                for (name, value) in map {
                    dict.set(Value::text(name), Self::from_json(value, budget)?, budget)?;
                }
                Value::Dict(Rc::new(dict))
            }
        })
    }

    fn depth(&self) -> usize {
        match self {
            Value::List(items) | Value::Tuple(items) | Value::View(_, items) => items.depth,
            Value::Dict(dict) => dict.depth,
            Value::Generator(generator) => generator.depth,
            Value::Method(method) => method.0.depth() + 1,
            Value::Cycler(cycler) => cycler.0.depth,
            _ => 0,
        }
    }

    /// Whether it may change later, or holds such a value. Such values are not stored in namespaces, so that no value contains itself.
    pub fn changes(&self) -> bool {
        match self {
            Value::Namespace(_) | Value::Generator(_) | Value::Loop(_) | Value::Cycler(_) => true,
            Value::List(items) | Value::Tuple(items) | Value::View(_, items) => items.changing,
            Value::Dict(dict) => dict.changing,
            Value::Method(method) => method.0.changes(),
            _ => false,
        }
    }

    /// The name of Python's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Text(_) => "str",
            Value::Safe(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::Range(..) => "range",
            Value::View(kind, _) => kind,
            Value::Generator(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Function(_) => "function",
            Value::Method(_) => "method",
            Value::Macro(..) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    /// The text of a string.
    pub fn as_text(&self) -> Option<&Arc<str>> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }

    /// An integer or Boolean as an integer.
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    /// Any number as a float.
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            other => other.as_int().map(|value| value as f64),
        }
    }

    /// Whether it counts as true in a condition.
    pub fn truth(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(value) => *value,
            Value::Int(value) => *value != 0,
            Value::Float(value) => *value != 0.0,
            Value::Text(text) | Value::Safe(text) => !text.is_empty(),
            Value::List(items) | Value::Tuple(items) | Value::View(_, items) => !items.all.is_empty(),
            Value::Dict(dict) => !dict.pairs.is_empty(),
            Value::Range(start, stop, step) => range_length(*start, *stop, *step) > 0,
            _ => true,
        }
    }

    /// The value itself; an error if it is undefined.
    pub fn used(&self) -> Result<&Self, Fault> {
        match self {
            Value::Undefined(what) => Err(Fault::new(&**what)),
            other => Ok(other),
        }
    }

    /// `len(...)`.
    ///
    /// # Errors
    /// A value without a length.
    pub fn length(&self, budget: &Budget) -> Result<usize, Fault> {
        Ok(match self {
            Value::Undefined(_) => 0,
            Value::Text(text) | Value::Safe(text) => {
                budget.work(text.len() / 64)?;
                text.chars().count()
            }
            Value::List(items) | Value::Tuple(items) | Value::View(_, items) => items.all.len(),
            Value::Dict(dict) => dict.pairs.len(),
            Value::Range(start, stop, step) => range_length(*start, *stop, *step),
            Value::Loop(state) => state.items.len(),
            other => return Err(Fault::new(format!("object of type '{}' has no len()", other.type_name()))),
        })
    }

    /// Whether it can be iterated.
    pub fn is_iterable(&self) -> bool {
        matches!(
            self,
            Value::Undefined(_)
                | Value::Text(_)
                | Value::Safe(_)
                | Value::List(_)
                | Value::Tuple(_)
                | Value::Dict(_)
                | Value::Range(..)
                | Value::View(..)
                | Value::Generator(_)
                | Value::Loop(_)
        )
    }

    /// All items; empties a generator.
    ///
    /// # Errors
    /// A value that cannot be iterated.
    pub fn items(&self, budget: &Budget) -> Result<Vec<Value>, Fault> {
        let all: Vec<Value> = match self {
            Value::Undefined(_) => Vec::new(),
            Value::Text(text) => {
                budget.make(text.len() * ITEM_BYTES)?;
                return Ok(text.chars().map(|c| Value::text(c.encode_utf8(&mut [0; 4]))).collect());
            }
            Value::List(items) | Value::Tuple(items) | Value::View(_, items) => {
                budget.work(items.all.len())?;
                items.all.clone()
            }
            Value::Dict(dict) => {
                budget.work(dict.pairs.len())?;
                dict.pairs.iter().map(|(key, _)| key.clone()).collect()
            }
            Value::Range(start, stop, step) => {
                let length = range_length(*start, *stop, *step);
                budget.make(length * ITEM_BYTES)?;
                (0..length as i128).map(|i| Value::Int(start + i * step)).collect()
            }
            Value::Generator(generator) => generator.left.take().into(),
            Value::Loop(_) => return Err(unsupported("iterating over `loop` itself")),
            Value::Safe(_) => return Err(unsupported("iterating over a text that is marked as safe")),
            other => return Err(Fault::new(format!("'{}' object is not iterable", other.type_name()))),
        };
        Ok(all)
    }

    /// The value as the key of a dict.
    ///
    /// # Errors
    /// A value that cannot be hashed.
    pub fn key(&self, budget: &Budget) -> Result<Key, Fault> {
        budget.work(1)?;
        Ok(match self {
            Value::Undefined(_) => Key::Undefined,
            Value::None => Key::None,
            Value::Bool(_) | Value::Int(_) => Key::Int(self.as_int().unwrap_or(0)),
            Value::Float(value) if value.fract() == 0.0 && value.abs() < 1e38 => Key::Int(*value as i128),
            Value::Float(value) => Key::Float(value.to_bits()),
            Value::Text(text) => Key::Text(Arc::clone(text)),
            Value::Tuple(items) => {
                budget.work(items.all.len())?;
                Key::Tuple(items.all.iter().map(|item| item.key(budget)).collect::<Result<_, _>>()?)
            }
            Value::List(_) | Value::Dict(_) => {
                return Err(Fault::new(format!("unhashable type: '{}'", self.type_name())));
            }
            other => return Err(unsupported(&format!("a {} as a key", other.type_name()))),
        })
    }

    /// `==`.
    ///
    /// # Errors
    /// If the comparison takes too long, or is not supported.
    pub fn equals(&self, other: &Value, budget: &Budget) -> Result<bool, Fault> {
        budget.work(1)?;
        Ok(match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Text(a) | Value::Safe(a), Value::Text(b) | Value::Safe(b)) => {
                budget.work(a.len().min(b.len()) / 64)?;
                a == b
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                if Rc::ptr_eq(a, b) {
                    return Ok(true);
                }
                all_equal(&a.all, &b.all, budget)?
            }
            (Value::Dict(a), Value::Dict(b)) => {
                if Rc::ptr_eq(a, b) {
                    return Ok(true);
                }
                dicts_equal(a, b, budget)?
            }
            (Value::Range(..), Value::Range(..)) => all_equal(&self.items(budget)?, &other.items(budget)?, budget)?,
            (Value::Namespace(a), Value::Namespace(b)) => Rc::ptr_eq(a, b),
            (Value::Generator(a), Value::Generator(b)) => Rc::ptr_eq(a, b),
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            (Value::Function(a), Value::Function(b)) => a == b,
            (Value::Macro(a, _), Value::Macro(b, _)) => Arc::ptr_eq(a, b),
            (Value::View(..), Value::View(..)) => return Err(unsupported("comparing keys or items of dicts")),
            (Value::Method(_), Value::Method(_)) => return Err(unsupported("comparing methods")),
            _ => match (self.as_float(), other.as_float()) {
                (Some(_), Some(_)) => self.numbers(other) == Some(Ordering::Equal),
                _ => false,
            },
        })
    }

    /// Compares two numbers; `None` if one is NaN.
    fn numbers(&self, other: &Value) -> Option<Ordering> {
        match (self.as_int(), other.as_int()) {
            (Some(a), Some(b)) => Some(a.cmp(&b)),
            (Some(a), None) => other.as_float().and_then(|b| compare_int_float(a, b)),
            (None, Some(b)) => self.as_float().and_then(|a| compare_int_float(b, a)).map(Ordering::reverse),
            (None, None) => self.as_float().and_then(|a| other.as_float().and_then(|b| a.partial_cmp(&b))),
        }
    }

    /// Compares two values, as `<` and `>` do; `None` if all comparisons are false. `symbol` is named in the error.
    ///
    /// # Errors
    /// Values without a common order.
    pub fn order(&self, other: &Value, symbol: &str, budget: &Budget) -> Result<Option<Ordering>, Fault> {
        budget.work(1)?;
        self.used()?;
        other.used()?;
        match (self, other) {
            (Value::Text(a), Value::Text(b)) => {
                budget.work(a.len().min(b.len()) / 64)?;
                // The order of UTF-8 bytes is that of code points.
                Ok(Some(a.cmp(b)))
            }
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                for (x, y) in a.all.iter().zip(&b.all) {
                    if !x.equals(y, budget)? {
                        return x.order(y, symbol, budget);
                    }
                }
                Ok(Some(a.all.len().cmp(&b.all.len())))
            }
            _ if self.as_float().is_some() && other.as_float().is_some() => Ok(self.numbers(other)),
            _ => Err(Fault::new(format!(
                "'{symbol}' not supported between instances of '{}' and '{}'",
                self.type_name(),
                other.type_name()
            ))),
        }
    }

    /// `self in container`.
    ///
    /// # Errors
    /// If `container` is not a container.
    pub fn is_in(&self, container: &Value, budget: &Budget) -> Result<bool, Fault> {
        match container {
            Value::Text(text) => match self {
                Value::Text(part) => {
                    budget.work(text.len() / 16)?;
                    Ok(text.contains(&**part))
                }
                other => {
                    Err(Fault::new(format!("'in <string>' requires string as left operand, not {}", other.type_name())))
                }
            },
            Value::Dict(dict) => Ok(dict.get(&self.key(budget)?).is_some()),
            Value::Generator(generator) => {
                while let Some(item) = { generator.left.borrow_mut().pop_front() } {
                    if item.equals(self, budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            other if other.is_iterable() => {
                for item in other.items(budget)? {
                    if item.equals(self, budget)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            other => Err(Fault::new(format!("argument of type '{}' is not iterable", other.type_name()))),
        }
    }

    /// `str(...)`.
    ///
    /// # Errors
    /// If the text is too long, or would show an address in Python's memory.
    pub fn to_text(&self, budget: &Budget) -> Result<Arc<str>, Fault> {
        match self {
            Value::Text(text) | Value::Safe(text) => Ok(Arc::clone(text)),
            other => {
                let mut out = String::new();
                other.print(&mut out, budget)?;
                Ok(out.into())
            }
        }
    }

    /// Appends `str(...)`.
    ///
    /// # Errors
    /// Those of [`to_text`](Self::to_text).
    pub fn print(&self, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        match self {
            Value::Undefined(_) => Ok(()),
            Value::Text(text) | Value::Safe(text) => add(out, text, budget),
            other => other.represent(out, budget),
        }
    }

    /// Appends `repr(...)`.
    ///
    /// # Errors
    /// Those of [`to_text`](Self::to_text).
    pub fn represent(&self, out: &mut String, budget: &Budget) -> Result<(), Fault> {
        budget.work(1)?;
        match self {
            Value::Undefined(_) => add(out, "Undefined", budget),
            Value::None => add(out, "None", budget),
            Value::Bool(value) => add(out, if *value { "True" } else { "False" }, budget),
            Value::Int(value) => add(out, &value.to_string(), budget),
            Value::Float(value) => add(out, &float_text(*value), budget),
            Value::Text(text) => add(out, &quoted(text, budget)?, budget),
            Value::List(items) => {
                add(out, "[", budget)?;
                represent_all(&items.all, out, budget)?;
                add(out, "]", budget)
            }
            Value::Tuple(items) => {
                add(out, "(", budget)?;
                represent_all(&items.all, out, budget)?;
                add(out, if items.all.len() == 1 { ",)" } else { ")" }, budget)
            }
            Value::View(kind, items) => {
                add(out, kind, budget)?;
                add(out, "([", budget)?;
                represent_all(&items.all, out, budget)?;
                add(out, "])", budget)
            }
            Value::Dict(dict) => represent_dict(dict, out, budget),
            Value::Namespace(dict) => {
                add(out, "<Namespace ", budget)?;
                represent_dict(&dict.borrow(), out, budget)?;
                add(out, ">", budget)
            }
            Value::Range(start, stop, 1) => add(out, &format!("range({start}, {stop})"), budget),
            Value::Range(start, stop, step) => add(out, &format!("range({start}, {stop}, {step})"), budget),
            other => Err(unsupported(&format!("printing a {}", other.type_name()))),
        }
    }
}

fn add(out: &mut String, text: &str, budget: &Budget) -> Result<(), Fault> {
    budget.make(text.len())?;
    out.push_str(text);
    Ok(())
}

fn represent_all(all: &[Value], out: &mut String, budget: &Budget) -> Result<(), Fault> {
    for (i, item) in all.iter().enumerate() {
        if i > 0 {
            add(out, ", ", budget)?;
        }
        item.represent(out, budget)?;
    }
    Ok(())
}

fn represent_dict(dict: &Dict, out: &mut String, budget: &Budget) -> Result<(), Fault> {
    add(out, "{", budget)?;
    for (i, (key, value)) in dict.pairs.iter().enumerate() {
        if i > 0 {
            add(out, ", ", budget)?;
        }
        key.represent(out, budget)?;
        add(out, ": ", budget)?;
        value.represent(out, budget)?;
    }
    add(out, "}", budget)
}

fn all_equal(a: &[Value], b: &[Value], budget: &Budget) -> Result<bool, Fault> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (x, y) in a.iter().zip(b) {
        if !x.equals(y, budget)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn dicts_equal(a: &Dict, b: &Dict, budget: &Budget) -> Result<bool, Fault> {
    if a.pairs.len() != b.pairs.len() {
        return Ok(false);
    }
    for (name, value) in &a.pairs {
        match b.get(&name.key(budget)?) {
            Some(other) if value.equals(other, budget)? => {}
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// Compares an integer and a float, exactly.
fn compare_int_float(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        return None;
    }
    if b.abs() >= 1e38 {
        return Some(if b > 0.0 { Ordering::Less } else { Ordering::Greater });
    }
    let whole = b.floor();
    Some(a.cmp(&(whole as i128)).then(if b > whole { Ordering::Less } else { Ordering::Equal }))
}

/// The number of items of a range.
pub fn range_length(start: i128, stop: i128, step: i128) -> usize {
    let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    if span <= 0 {
        return 0;
    }
    usize::try_from((span - 1) / step.saturating_abs().max(1) + 1).unwrap_or(usize::MAX)
}

/// `repr` of a float: the fewest digits that parse to the same float, with an exponent below 1e-4 and from 1e16 on.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{value}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// `repr` of a string.
fn quoted(text: &str, budget: &Budget) -> Result<String, Fault> {
    budget.make(text.len())?;
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            c if is_printable(c) => out.push(c),
            c => out.push_str(&match u32::from(c) {
                code @ ..=0xff => format!("\\x{code:02x}"),
                code @ ..=0xffff => format!("\\u{code:04x}"),
                code => format!("\\U{code:08x}"),
            }),
        }
    }
    out.push(quote);
    Ok(out)
}

/// Python's `str.isprintable`: false for control, format, surrogate, private and unassigned characters, and for separators except the
/// space.
pub fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return (' '..='~').contains(&c);
    }
    // `escape_debug` of the standard library escapes the same categories.
    let shown: String = ['a', c].iter().collect::<String>().escape_debug().collect();
    !shown[1..].starts_with('\\') && !(is_space(c))
}

/// The beginning of a text, for errors.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text.to_owned(),
    }
}
