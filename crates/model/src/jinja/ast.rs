//! What a template says, as a tree.

use std::sync::Arc;

use super::limits::{Fault, TREE};

/// A statement, or text that is printed.
#[derive(Debug)]
pub enum Statement {
    /// Text as it is.
    Data(Arc<str>),
    /// `{{ ... }}`, with its line.
    Print(usize, Expression),
    /// `{% if %}` with its `elif`s, and what holds otherwise.
    If(Vec<(usize, Expression, Vec<Statement>)>, Vec<Statement>),
    /// `{% for %}`.
    For(Arc<For>),
    /// `{% set a = ... %}`.
    Set(usize, Target, Expression),
    /// `{% set a %}...{% endset %}`.
    SetBlock(usize, Target, Vec<FilterCall>, Vec<Statement>),
    /// `{% with %}`.
    With(usize, Vec<(Target, Expression)>, Vec<Statement>),
    /// `{% macro %}`.
    Macro(Arc<Macro>),
    /// `{% call %}`: the call and what `caller` is.
    Call(usize, CallExpression, Arc<Macro>),
    /// `{% filter %}`.
    Filter(usize, Vec<FilterCall>, Vec<Statement>),
    /// `{% generation %}`: printed like any other text, in a scope of its own.
    Generation(Vec<Statement>),
    /// `{% block %}`, which sees the template's own variables alone.
    Block(Vec<Statement>),
    /// `{% break %}`.
    Break,
    /// `{% continue %}`.
    Continue,
}

/// A loop.
#[derive(Debug)]
pub struct For {
    /// Its line.
    pub line: usize,
    /// What takes each item.
    pub target: Target,
    /// What is gone through.
    pub over: Expression,
    /// Which items are taken.
    pub filter: Option<Expression>,
    /// Whether `loop` can be called.
    pub recursive: bool,
    /// What is done with each.
    pub body: Vec<Statement>,
    /// What is done if there are none.
    pub otherwise: Vec<Statement>,
}

/// A macro, or the body of a call block.
#[derive(Debug)]
pub struct Macro {
    /// Its name.
    pub name: Arc<str>,
    /// Parameters with their defaults.
    pub parameters: Vec<(Arc<str>, Option<Expression>)>,
    /// What it prints.
    pub body: Vec<Statement>,
    /// Which of the names `varargs`, `kwargs` and `caller` its body has: what is passed beyond its parameters is an error without them.
    pub special: Special,
}

/// Special names in the body of a macro.
#[derive(Debug, Default, Clone, Copy)]
pub struct Special {
    /// `varargs`.
    pub varargs: bool,
    /// `kwargs`.
    pub kwargs: bool,
    /// `caller`.
    pub caller: bool,
}

/// What a value is assigned to.
#[derive(Debug)]
pub enum Target {
    /// A variable.
    Name(Arc<str>),
    /// An attribute of a namespace.
    Attribute(Arc<str>, Arc<str>),
    /// Several, each taking an item.
    Tuple(Vec<Target>),
}

/// `name(arguments)` behind `|`.
#[derive(Debug)]
pub struct FilterCall {
    /// The filter.
    pub name: Arc<str>,
    /// Its arguments.
    pub arguments: Arguments,
}

/// A function with its arguments.
#[derive(Debug)]
pub struct CallExpression {
    /// What is called.
    pub function: Expression,
    /// With what.
    pub arguments: Arguments,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct Arguments {
    /// By position.
    pub positional: Vec<Expression>,
    /// By name.
    pub named: Vec<(Arc<str>, Expression)>,
    /// `*...`.
    pub more: Option<Expression>,
    /// `**...`.
    pub more_named: Option<Expression>,
}

/// An expression with the depth of its tree.
#[derive(Debug)]
pub struct Expression {
    /// What it is.
    pub kind: Box<Kind>,
    depth: usize,
}

/// A value that is written in a template.
#[derive(Debug, Clone)]
pub enum Constant {
    /// `none`.
    None,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// Another number.
    Float(f64),
    /// A string.
    Text(Arc<str>),
}

/// What an expression is.
#[derive(Debug)]
pub enum Kind {
    /// A value.
    Constant(Constant),
    /// A variable.
    Name(Arc<str>),
    /// `[...]`.
    List(Vec<Expression>),
    /// `(..., ...)`.
    Tuple(Vec<Expression>),
    /// `{...}`.
    Dict(Vec<(Expression, Expression)>),
    /// `not`.
    Not(Expression),
    /// `-` before a number.
    Negative(Expression),
    /// `+` before a number.
    Positive(Expression),
    /// Two numbers, strings or lists.
    Arithmetic(Operator, Expression, Expression),
    /// `a ~ b ~ c`.
    Concat(Vec<Expression>),
    /// `a < b < c`.
    Compare(Expression, Vec<(Comparison, Expression)>),
    /// `and`.
    And(Expression, Expression),
    /// `or`.
    Or(Expression, Expression),
    /// `then if test else otherwise`: test, then, otherwise.
    Condition(Expression, Expression, Option<Expression>),
    /// `a.b`.
    Attribute(Expression, Arc<str>),
    /// `a[b]`.
    Item(Expression, Expression),
    /// `a[from:to:step]`.
    Slice(Expression, [Option<Expression>; 3]),
    /// `a(b)`, with its line.
    Call(usize, CallExpression),
    /// `a|b`.
    Filter(Expression, FilterCall),
    /// `a is b`.
    Test(Expression, FilterCall),
}

/// An operator between two values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `+`.
    Add,
    /// `-`.
    Subtract,
    /// `*`.
    Multiply,
    /// `/`.
    Divide,
    /// `//`.
    FloorDivide,
    /// `%`.
    Remainder,
    /// `**`.
    Power,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `==`.
    Equal,
    /// `!=`.
    Unequal,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
    /// `in`.
    In,
    /// `not in`.
    NotIn,
}

impl Expression {
    /// An expression of this kind.
    ///
    /// # Errors
    /// If its tree is too deep.
    pub fn new(kind: Kind) -> Result<Self, Fault> {
        let mut depth = 0;
        kind.children(&mut |child| depth = depth.max(child.depth));
        match depth < TREE {
            true => Ok(Self { kind: Box::new(kind), depth: depth + 1 }),
            false => Err(Fault::new(format!("an expression has more than {TREE} parts in a row or in one another"))),
        }
    }
}

impl Arguments {
    fn children<'a>(&'a self, see: &mut dyn FnMut(&'a Expression)) {
        self.positional.iter().for_each(&mut *see);
        self.named.iter().map(|(_, value)| value).for_each(&mut *see);
        self.more.iter().chain(&self.more_named).for_each(see);
    }
}

impl Kind {
    fn children<'a>(&'a self, see: &mut dyn FnMut(&'a Expression)) {
        match self {
            Kind::Constant(_) | Kind::Name(_) => {}
            Kind::List(all) | Kind::Tuple(all) | Kind::Concat(all) => all.iter().for_each(see),
            Kind::Dict(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).for_each(see),
            Kind::Not(a) | Kind::Negative(a) | Kind::Positive(a) | Kind::Attribute(a, _) => see(a),
            Kind::Arithmetic(_, a, b) | Kind::And(a, b) | Kind::Or(a, b) | Kind::Item(a, b) => {
                see(a);
                see(b);
            }
            Kind::Compare(first, rest) => {
                see(first);
                rest.iter().map(|(_, other)| other).for_each(see);
            }
            Kind::Condition(test, then, otherwise) => {
                see(test);
                see(then);
                otherwise.iter().for_each(see);
            }
            Kind::Slice(of, bounds) => {
                see(of);
                bounds.iter().flatten().for_each(see);
            }
            Kind::Call(_, call) => {
                see(&call.function);
                call.arguments.children(see);
            }
            Kind::Filter(of, call) | Kind::Test(of, call) => {
                see(of);
                call.arguments.children(see);
            }
        }
    }
}
