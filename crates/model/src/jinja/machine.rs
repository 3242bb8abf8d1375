//! Runs templates.
//!
//! The file is long because all statements and expressions run on one state.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::ast::{
    Arguments, CallExpression, Comparison, Expression, FilterCall, For, Kind, Macro, Operator, Statement, Target,
};
use super::date::strftime;
use super::filters;
use super::limits::{Budget, CALLS, Fault, unsupported};
use super::lookup;
use super::methods;
use super::numbers;
use super::passed::{Passed, int_of, int_or, text_of};
use super::predicates;
use super::value::{Dict, Items, Loop, Value, range_length};

/// Functions that every template can call.
const FUNCTIONS: [&str; 8] =
    ["range", "dict", "lipsum", "cycler", "joiner", "namespace", "raise_exception", "strftime_now"];

/// Most items of a range: the sandbox's limit.
const LONGEST_RANGE: usize = 100_000;

/// What one scope counts towards the budget.
const SCOPE_BYTES: usize = 128;

/// The scope of the template's top-level variables. Scope 0, below it, holds the variables that the caller passes.
const TOP: usize = 1;

/// How a statement ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flow {
    On,
    Break,
    Continue,
}

#[derive(Default)]
struct Scope {
    parent: Option<usize>,
    names: HashMap<Arc<str>, Value>,
    /// Whether a macro may still use it.
    kept: bool,
}

/// A running template.
pub struct Machine<'b> {
    budget: &'b Budget,
    scopes: Vec<Scope>,
    /// The output, followed by the captured output of open blocks, macros and filters.
    out: Vec<String>,
    depth: usize,
    line: usize,
}

/// Runs a template with these variables; returns the text that it prints.
///
/// # Errors
/// What fails, with its line.
pub fn run(body: &[Statement], variables: Vec<(Arc<str>, Value)>, budget: &Budget) -> Result<String, Fault> {
    let mut names: HashMap<Arc<str>, Value> =
        FUNCTIONS.iter().map(|name| (Arc::from(*name), Value::Function(name))).collect();
    names.extend(variables);
    let given = Scope { names, ..Scope::default() };
    let top = Scope { parent: Some(0), ..Scope::default() };
    let mut machine = Machine { budget, scopes: vec![given, top], out: vec![String::new()], depth: 0, line: 1 };
    machine.all(body, TOP).map_err(|fault| fault.at(machine.line))?;
    Ok(machine.out.swap_remove(0))
}

impl Machine<'_> {
    // --- Scopes ---

    fn enter(&mut self, parent: usize) -> Result<usize, Fault> {
        self.budget.make(SCOPE_BYTES)?;
        self.scopes.push(Scope { parent: Some(parent), ..Scope::default() });
        Ok(self.scopes.len() - 1)
    }

    fn leave(&mut self, scope: usize) {
        if scope + 1 == self.scopes.len() && !self.scopes[scope].kept {
            self.scopes.pop();
        }
    }

    /// Keeps a scope and those that enclose it, for a macro.
    fn keep(&mut self, scope: usize) {
        let mut at = Some(scope);
        while let Some(scope) = at.filter(|scope| !self.scopes[*scope].kept) {
            self.scopes[scope].kept = true;
            at = self.scopes[scope].parent;
        }
    }

    fn lookup(&self, name: &str, scope: usize) -> Value {
        let mut at = Some(scope);
        while let Some(scope) = at {
            if let Some(value) = self.scopes[scope].names.get(name) {
                return value.clone();
            }
            at = self.scopes[scope].parent;
        }
        Value::undefined(name)
    }

    fn set(&mut self, name: &Arc<str>, value: Value, scope: usize) -> Result<(), Fault> {
        self.budget.make(SCOPE_BYTES)?;
        self.scopes[scope].names.insert(Arc::clone(name), value);
        Ok(())
    }

    fn assign(&mut self, target: &Target, value: Value, scope: usize) -> Result<(), Fault> {
        match target {
            Target::Name(name) => self.set(name, value, scope),
            Target::Attribute(name, attribute) => {
                let Value::Namespace(namespace) = self.lookup(name, scope) else {
                    return Err(Fault::new("cannot assign attribute on non-namespace object"));
                };
                if value.changes() {
                    let holds = match value {
                        Value::Namespace(_) | Value::Generator(_) | Value::Loop(_) | Value::Cycler(_) => "",
                        _ => " that holds a namespace, loop or generator",
                    };
                    return Err(unsupported(&format!("a {}{holds} in a namespace", value.type_name())));
                }
                namespace.borrow_mut().set(Value::Text(Arc::clone(attribute)), value, self.budget)
            }
            Target::Tuple(targets) => {
                let values = value.used()?.items(self.budget)?;
                if values.len() != targets.len() {
                    let (wanted, got) = (targets.len(), values.len());
                    let what = if got < wanted { "not enough" } else { "too many" };
                    return Err(Fault::new(format!("{what} values to unpack (expected {wanted}, got {got})")));
                }
                targets.iter().zip(values).try_for_each(|(target, value)| self.assign(target, value, scope))
            }
        }
    }

    // --- Statements ---

    fn deeper(&mut self) -> Result<(), Fault> {
        self.depth += 1;
        match self.depth <= CALLS {
            true => self.budget.work(1),
            false => Err(Fault::new(format!("calls and loops are nested more than {CALLS} deep"))),
        }
    }

    fn all(&mut self, body: &[Statement], scope: usize) -> Result<Flow, Fault> {
        self.deeper()?;
        let mut flow = Flow::On;
        for statement in body {
            flow = self.statement(statement, scope)?;
            if flow != Flow::On {
                break;
            }
        }
        self.depth -= 1;
        Ok(flow)
    }

    /// Runs a body in a new scope.
    fn scoped(&mut self, body: &[Statement], parent: usize) -> Result<Flow, Fault> {
        let scope = self.enter(parent)?;
        let flow = self.all(body, scope)?;
        self.leave(scope);
        Ok(flow)
    }

    /// Runs a body; returns what it prints, and how it ended.
    fn captured(&mut self, body: &[Statement], scope: usize) -> Result<(Value, Flow), Fault> {
        self.out.push(String::new());
        let flow = self.all(body, scope)?;
        let text = self.out.pop().unwrap_or_default();
        self.budget.make(text.len())?;
        Ok((Value::Text(text.into()), flow))
    }

    fn print(&mut self, value: &Value) -> Result<(), Fault> {
        let budget = self.budget;
        match self.out.last_mut() {
            Some(out) => value.print(out, budget),
            None => Ok(()),
        }
    }

    fn statement(&mut self, statement: &Statement, scope: usize) -> Result<Flow, Fault> {
        match statement {
            Statement::Data(text) => self.print(&Value::Text(Arc::clone(text)))?,
            Statement::Print(line, value) => {
                self.line = *line;
                let value = self.value(value, scope)?;
                self.print(&value)?;
            }
            Statement::If(arms, otherwise) => return self.condition(arms, otherwise, scope),
            Statement::For(node) => {
                self.line = node.line;
                let over = self.value(&node.over, scope)?;
                return self.run_loop(node, &over, scope, 0);
            }
            Statement::Set(line, target, value) => {
                self.line = *line;
                let value = self.value(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Statement::SetBlock(line, target, filters, body) => {
                let (text, flow) = self.in_scope(body, scope)?;
                if flow != Flow::On {
                    return Ok(flow);
                }
                self.line = *line;
                let value = self.filtered(text, filters, scope)?;
                self.assign(target, value, scope)?;
            }
            Statement::Filter(line, filters, body) => {
                let (text, flow) = self.in_scope(body, scope)?;
                if flow != Flow::On {
                    return Ok(flow);
                }
                self.line = *line;
                let value = self.filtered(text, filters, scope)?;
                self.print(&value)?;
            }
            Statement::With(line, values, body) => {
                self.line = *line;
                let inner = self.enter(scope)?;
                for (target, value) in values {
                    let value = self.value(value, scope)?;
                    self.assign(target, value, inner)?;
                }
                let flow = self.all(body, inner)?;
                self.leave(inner);
                return Ok(flow);
            }
            Statement::Macro(node) => {
                self.keep(scope);
                self.set(&node.name, Value::Macro(Arc::clone(node), scope), scope)?;
            }
            Statement::Call(line, call, body) => {
                self.line = *line;
                self.keep(scope);
                let caller = Value::Macro(Arc::clone(body), scope);
                let printed = self.call(call, Some(caller), scope)?;
                self.print(&printed)?;
            }
            Statement::Generation(body) => return self.scoped(body, scope),
            Statement::Block(body) => return self.scoped(body, TOP),
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::On)
    }

    /// Like `captured`, in a new scope.
    fn in_scope(&mut self, body: &[Statement], parent: usize) -> Result<(Value, Flow), Fault> {
        let scope = self.enter(parent)?;
        let captured = self.captured(body, scope)?;
        self.leave(scope);
        Ok(captured)
    }

    fn condition(
        &mut self,
        arms: &[(usize, Expression, Vec<Statement>)],
        otherwise: &[Statement],
        scope: usize,
    ) -> Result<Flow, Fault> {
        for (line, test, body) in arms {
            self.line = *line;
            if self.value(test, scope)?.truth() {
                return self.all(body, scope);
            }
        }
        self.all(otherwise, scope)
    }

    fn run_loop(&mut self, node: &Arc<For>, over: &Value, scope: usize, depth: usize) -> Result<Flow, Fault> {
        let items = over.items(self.budget)?;
        let items = self.chosen(node, items, scope)?;
        let recursive = node.recursive.then(|| (Arc::clone(node), scope));
        let count = items.len();
        let state = Rc::new(Loop { items, at: Cell::new(0), depth, recursive, seen: RefCell::new(None) });
        // As in jinja2, `else` runs unless some turn ended without `break` or `continue`.
        let mut any_whole = false;
        for at in 0..count {
            state.at.set(at);
            let inner = self.enter(scope)?;
            self.scopes[inner].names.insert("loop".into(), Value::Loop(Rc::clone(&state)));
            self.line = node.line;
            self.assign(&node.target, state.items[at].clone(), inner)?;
            let flow = self.all(&node.body, inner)?;
            self.leave(inner);
            any_whole |= flow == Flow::On;
            if flow == Flow::Break {
                break;
            }
        }
        if any_whole { Ok(Flow::On) } else { self.scoped(&node.otherwise, scope) }
    }

    /// The items that meet a loop's condition.
    fn chosen(&mut self, node: &For, items: Vec<Value>, scope: usize) -> Result<Vec<Value>, Fault> {
        let Some(filter) = &node.filter else { return Ok(items) };
        let mut kept = Vec::new();
        for item in items {
            let inner = self.enter(scope)?;
            self.assign(&node.target, item.clone(), inner)?;
            if self.value(filter, inner)?.truth() {
                kept.push(item);
            }
            self.leave(inner);
        }
        Ok(kept)
    }

    fn filtered(&mut self, value: Value, filters: &[FilterCall], scope: usize) -> Result<Value, Fault> {
        let mut value = value;
        for filter in filters {
            let passed = self.passed(&filter.arguments, scope)?;
            value = filters::call(&filter.name, &value, passed, self.budget)?;
        }
        Ok(value)
    }

    // --- Expressions ---

    fn value(&mut self, expression: &Expression, scope: usize) -> Result<Value, Fault> {
        self.deeper()?;
        let value = self.value_of(&expression.kind, scope)?;
        self.depth -= 1;
        Ok(value)
    }

    fn values(&mut self, all: &[Expression], scope: usize) -> Result<Vec<Value>, Fault> {
        all.iter().map(|expression| self.value(expression, scope)).collect()
    }

    fn optional(&mut self, expression: Option<&Expression>, scope: usize) -> Result<Value, Fault> {
        expression.map_or(Ok(Value::None), |expression| self.value(expression, scope))
    }

    fn value_of(&mut self, kind: &Kind, scope: usize) -> Result<Value, Fault> {
        let budget = self.budget;
        match kind {
            Kind::Constant(constant) => Ok(Value::from(constant)),
            Kind::Name(name) => Ok(self.lookup(name, scope)),
            Kind::List(all) => Value::list(self.values(all, scope)?, budget),
            Kind::Tuple(all) => Value::tuple(self.values(all, scope)?, budget),
            Kind::Dict(pairs) => self.dict(pairs, scope),
            Kind::Not(of) => Ok(Value::Bool(!self.value(of, scope)?.truth())),
            Kind::Negative(of) => {
                let of = self.value(of, scope)?;
                match of.used()? {
                    Value::Float(number) => Ok(Value::Float(-number)),
                    _ => numbers::arithmetic(Operator::Subtract, &Value::Int(0), &signed(of, '-')?, budget),
                }
            }
            Kind::Positive(of) => {
                let of = self.value(of, scope)?;
                match of.used()? {
                    Value::Float(number) => Ok(Value::Float(*number)),
                    _ => signed(of, '+'),
                }
            }
            Kind::Arithmetic(operator, a, b) => {
                let (a, b) = (self.value(a, scope)?, self.value(b, scope)?);
                numbers::arithmetic(*operator, &a, &b, budget)
            }
            Kind::Concat(all) => self.concat(all, scope),
            Kind::Compare(first, rest) => self.compare(first, rest, scope),
            Kind::And(a, b) => {
                let a = self.value(a, scope)?;
                if a.truth() { self.value(b, scope) } else { Ok(a) }
            }
            Kind::Or(a, b) => {
                let a = self.value(a, scope)?;
                if a.truth() { Ok(a) } else { self.value(b, scope) }
            }
            Kind::Condition(test, then, otherwise) => {
                if self.value(test, scope)?.truth() {
                    return self.value(then, scope);
                }
                let missing = "an inline if-expression evaluated to false and no else section was defined.";
                otherwise
                    .as_ref()
                    .map_or_else(|| Ok(Value::Undefined(missing.into())), |otherwise| self.value(otherwise, scope))
            }
            Kind::Attribute(of, name) => lookup::attribute(&self.value(of, scope)?, name),
            Kind::Item(of, key) => {
                let (of, key) = (self.value(of, scope)?, self.value(key, scope)?);
                lookup::item(&of, &key, budget)
            }
            Kind::Slice(of, [from, to, step]) => {
                let of = self.value(of, scope)?;
                let bounds = [
                    self.optional(from.as_ref(), scope)?,
                    self.optional(to.as_ref(), scope)?,
                    self.optional(step.as_ref(), scope)?,
                ];
                lookup::slice(&of, bounds, budget)
            }
            Kind::Call(line, call) => {
                let outer = std::mem::replace(&mut self.line, *line);
                let value = self.call(call, None, scope)?;
                self.line = outer;
                Ok(value)
            }
            Kind::Filter(of, filter) => {
                let of = self.value(of, scope)?;
                let passed = self.passed(&filter.arguments, scope)?;
                filters::call(&filter.name, &of, passed, budget)
            }
            Kind::Test(of, test) => {
                let of = self.value(of, scope)?;
                let passed = self.passed(&test.arguments, scope)?;
                predicates::call(&test.name, &of, passed, budget).map(Value::Bool)
            }
        }
    }

    fn dict(&mut self, pairs: &[(Expression, Expression)], scope: usize) -> Result<Value, Fault> {
        let mut dict = Dict::default();
        for (key, value) in pairs {
            let (key, value) = (self.value(key, scope)?, self.value(value, scope)?);
            dict.set(key, value, self.budget)?;
        }
        Ok(Value::Dict(Rc::new(dict)))
    }

    fn concat(&mut self, all: &[Expression], scope: usize) -> Result<Value, Fault> {
        let mut out = String::new();
        for value in self.values(all, scope)? {
            value.print(&mut out, self.budget)?;
        }
        Ok(Value::text(&out))
    }

    fn compare(&mut self, first: &Expression, rest: &[(Comparison, Expression)], scope: usize) -> Result<Value, Fault> {
        let mut left = self.value(first, scope)?;
        for (comparison, right) in rest {
            let right = self.value(right, scope)?;
            let budget = self.budget;
            let holds = match comparison {
                Comparison::Equal => predicates::compare("==", &left, &right, budget)?,
                Comparison::Unequal => predicates::compare("!=", &left, &right, budget)?,
                Comparison::Less => predicates::compare("<", &left, &right, budget)?,
                Comparison::LessOrEqual => predicates::compare("<=", &left, &right, budget)?,
                Comparison::Greater => predicates::compare(">", &left, &right, budget)?,
                Comparison::GreaterOrEqual => predicates::compare(">=", &left, &right, budget)?,
                Comparison::In => left.is_in(&right, budget)?,
                Comparison::NotIn => !left.is_in(&right, budget)?,
            };
            if !holds {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    // --- Calls ---

    fn passed(&mut self, arguments: &Arguments, scope: usize) -> Result<Passed, Fault> {
        let mut positional = self.values(&arguments.positional, scope)?;
        let mut named = Vec::new();
        for (name, value) in &arguments.named {
            named.push((Arc::clone(name), self.value(value, scope)?));
        }
        if let Some(more) = &arguments.more {
            positional.extend(self.value(more, scope)?.items(self.budget)?);
        }
        if let Some(more) = &arguments.more_named {
            let Value::Dict(more) = self.value(more, scope)? else {
                return Err(Fault::new("argument after ** must be a mapping"));
            };
            for (name, value) in &more.pairs {
                let name = text_of("a keyword", name)?;
                if named.iter().any(|(other, _)| *other == name) {
                    return Err(Fault::new(format!("got multiple values for keyword argument '{name}'")));
                }
                named.push((name, value.clone()));
            }
        }
        self.budget.make((positional.len() + named.len()) * 64)?;
        Ok(Passed { positional, named })
    }

    fn call(&mut self, call: &CallExpression, caller: Option<Value>, scope: usize) -> Result<Value, Fault> {
        let function = self.value(&call.function, scope)?;
        let mut passed = self.passed(&call.arguments, scope)?;
        passed.named.extend(caller.map(|caller| (Arc::from("caller"), caller)));
        match function.used()? {
            Value::Function(name) => self.function(name, passed),
            Value::Method(method) => methods::call(&method.0, method.1, passed, self.budget),
            Value::Macro(node, scope) => self.call_macro(node, *scope, passed),
            Value::Loop(state) => self.call_loop(state, passed),
            Value::Joiner(joiner) => {
                let [] = passed.bind("joiner", [], 0)?;
                Ok(Value::Text(if joiner.1.replace(true) { Arc::clone(&joiner.0) } else { "".into() }))
            }
            other => Err(Fault::new(format!("'{}' object is not callable", other.type_name()))),
        }
    }

    fn call_loop(&mut self, state: &Loop, passed: Passed) -> Result<Value, Fault> {
        let [over] = passed.bind("loop", ["iterable"], 1)?;
        let Some((node, scope)) = &state.recursive else {
            return Err(Fault::new("The loop must have the 'recursive' marker to be called recursively."));
        };
        self.deeper()?;
        self.out.push(String::new());
        self.run_loop(node, &over.unwrap_or(Value::None), *scope, state.depth + 1)?;
        let text = self.out.pop().unwrap_or_default();
        self.depth -= 1;
        Ok(Value::Text(text.into()))
    }

    fn call_macro(&mut self, node: &Arc<Macro>, around: usize, passed: Passed) -> Result<Value, Fault> {
        self.deeper()?;
        let scope = self.enter(around)?;
        self.set_parameters(node, passed, scope)?;
        let (text, _) = self.captured(&node.body, scope)?;
        self.leave(scope);
        self.depth -= 1;
        Ok(text)
    }

    fn set_parameters(&mut self, node: &Macro, passed: Passed, scope: usize) -> Result<(), Fault> {
        let Passed { positional, mut named } = passed;
        let count = node.parameters.len();
        let mut positional = positional.into_iter();
        let mut given = Vec::new();
        for (name, _) in &node.parameters {
            let by_name = |named: &mut Vec<(Arc<str>, Value)>| {
                named.iter().position(|(other, _)| other == name).map(|at| named.remove(at).1)
            };
            given.push(positional.next().or_else(|| by_name(&mut named)));
        }
        for ((name, default), value) in node.parameters.iter().zip(given) {
            let value = match (value, default) {
                (Some(value), _) => value,
                (None, Some(default)) => self.value(default, scope)?,
                (None, None) => Value::Undefined(format!("parameter '{name}' was not provided").into()),
            };
            self.set(name, value, scope)?;
        }
        let special = node.special;
        if special.caller {
            let at = named.iter().position(|(name, _)| **name == *"caller");
            let caller = at.map(|at| named.remove(at).1);
            let caller = caller.unwrap_or_else(|| Value::Undefined("No caller defined".into()));
            self.set(&"caller".into(), caller, scope)?;
        }
        if special.kwargs {
            let pairs = named.into_iter().map(|(name, value)| (Value::Text(name), value));
            let kwargs = lookup::dict_of(pairs, self.budget)?;
            self.set(&"kwargs".into(), Value::Dict(Rc::new(kwargs)), scope)?;
        } else if let Some((name, _)) = named.first() {
            return Err(Fault::new(format!("macro '{}' takes no keyword argument '{name}'", node.name)));
        }
        let rest: Vec<Value> = positional.collect();
        if special.varargs {
            self.set(&"varargs".into(), Value::tuple(rest, self.budget)?, scope)?;
        } else if !rest.is_empty() {
            return Err(Fault::new(format!("macro '{}' takes not more than {count} argument(s)", node.name)));
        }
        Ok(())
    }

    fn function(&mut self, name: &'static str, passed: Passed) -> Result<Value, Fault> {
        match name {
            "range" => range(passed),
            "dict" => Ok(Value::Dict(Rc::new(self.new_dict(name, passed)?))),
            "namespace" => {
                let dict = self.new_dict(name, passed)?;
                match dict.pairs.iter().find(|(_, value)| value.changes()) {
                    Some((_, value)) => Err(unsupported(&format!("a {} in a namespace", value.type_name()))),
                    None => Ok(Value::Namespace(Rc::new(RefCell::new(dict)))),
                }
            }
            "cycler" => match passed {
                Passed { positional, named } if named.is_empty() && !positional.is_empty() => {
                    Ok(Value::Cycler(Rc::new((Items::new(positional, self.budget)?, Cell::new(0)))))
                }
                _ => Err(Fault::new("cycler: at least one item has to be provided, and none by name")),
            },
            "joiner" => {
                let [separator] = passed.bind(name, ["sep"], 0)?;
                let separator =
                    separator.map_or_else(|| Ok(Arc::from(", ")), |given| text_of("a separator", &given))?;
                Ok(Value::Joiner(Rc::new((separator, Cell::new(false)))))
            }
            "raise_exception" => {
                let [message] = passed.bind(name, ["message"], 1)?;
                Err(Fault::new(&*message.unwrap_or(Value::None).to_text(self.budget)?))
            }
            "strftime_now" => {
                let [format] = passed.bind(name, ["format"], 1)?;
                let format = text_of("the format", &format.unwrap_or(Value::None))?;
                self.budget.make(format.len().saturating_mul(16))?;
                strftime(&format).map(|text| Value::text(&text))
            }
            other => Err(unsupported(&format!("the function `{other}`"))),
        }
    }

    /// `dict(...)` with a dict or pairs, and named arguments.
    fn new_dict(&self, what: &str, passed: Passed) -> Result<Dict, Fault> {
        let budget = self.budget;
        let mut dict = Dict::default();
        match passed.positional.as_slice() {
            [] => {}
            [Value::Dict(first)] => {
                for (name, value) in &first.pairs {
                    dict.set(name.clone(), value.clone(), budget)?;
                }
            }
            [pairs] => {
                for pair in pairs.used()?.items(budget)? {
                    match pair.items(budget)?.as_slice() {
                        [name, value] => dict.set(name.clone(), value.clone(), budget)?,
                        other => {
                            let count = other.len();
                            return Err(Fault::new(format!("{what}: an item has {count} parts; 2 are required")));
                        }
                    }
                }
            }
            more => return Err(Fault::new(format!("{what} expected at most 1 argument, got {}", more.len()))),
        }
        for (name, value) in passed.named {
            dict.set(Value::Text(name), value, budget)?;
        }
        Ok(dict)
    }
}

/// The operand of a unary sign as an integer; it must be an integer or Boolean.
fn signed(value: Value, sign: char) -> Result<Value, Fault> {
    match value.as_int() {
        Some(value) => Ok(Value::Int(value)),
        None => Err(Fault::new(format!("bad operand type for unary {sign}: '{}'", value.type_name()))),
    }
}

fn range(passed: Passed) -> Result<Value, Fault> {
    let [first, second, step] = passed.bind("range", ["", "", ""], 1)?;
    let first = int_of(&first.unwrap_or(Value::None))?;
    let (start, stop) = match second {
        Some(stop) => (first, int_of(&stop)?),
        None => (0, first),
    };
    let step = int_or(step.as_ref(), 1)?;
    if step == 0 {
        return Err(Fault::new("range() arg 3 must not be zero"));
    }
    match range_length(start, stop, step) <= LONGEST_RANGE {
        true => Ok(Value::Range(start, stop, step)),
        false => Err(Fault::new(format!("range too big: the sandbox blocks ranges larger than {LONGEST_RANGE}"))),
    }
}
