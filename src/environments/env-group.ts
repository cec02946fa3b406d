/**
 * Combines several environments into one. A run treats the members separately: each has its own share of the tasks, its own rubric, and metrics under
 * its own name. If a group is used directly, each row is played by the member that it came from.
 */
import { UserError } from '../common/errors.ts'
import type { Message } from '../common/types.ts'
import { type KeysOf, refuseUnknown } from './known-options.ts'
import { namesOf, Rubric, type Scores } from './rubric.ts'
import type { EnvMember, Environment, RolloutContext, RolloutDraft, Row } from './types.ts'

export interface EnvGroupOptions {
  id: string
  /** `name`: used in metrics, default the environment's id. `weight`: relative share of the tasks, default 1. */
  envs: readonly { env: Environment; name?: string; weight?: number }[]
}

const groupKeys: KeysOf<EnvGroupOptions> = { id: true, envs: true }
const memberKeys: KeysOf<EnvGroupOptions['envs'][number]> = { env: true, name: true, weight: true }

/** A group of environments. The name of each row's member is in `info.env_id`. */
export class EnvGroup implements Environment {
  readonly id: string
  readonly members: readonly EnvMember[]
  readonly dataset: readonly Row[]
  readonly evalDataset: readonly Row[]
  readonly rubric: Rubric
  readonly maxTurns: number

  /** Throws UserError if there are no members, two have the same name, or a weight is invalid. */
  constructor(options: EnvGroupOptions) {
    const { id, envs } = options
    refuseUnknown(`environment ${id}`, options, groupKeys)
    for (const member of envs) refuseUnknown(`environment ${id}: member ${member.name ?? member.env.id}`, member, memberKeys)
    this.id = id
    this.members = envs.flatMap(({ env, name = env.id, weight = 1 }) => membersOf({ env, name, weight }))
    const names = this.members.map((member) => member.name)
    if (names.length === 0) throw new UserError(`environment ${id}: a group needs at least one environment.`)
    const twice = names.find((name, i) => names.indexOf(name) < i)
    if (twice !== undefined)
      throw new UserError(`environment ${id}: two members are named ${twice}; give each a name of its own.`)
    const wrong = this.members.find(({ weight }) => !(weight > 0 && Number.isFinite(weight)))
    if (wrong) throw new UserError(`environment ${id}: the weight of ${wrong.name} is ${wrong.weight}; it must be above 0.`)
    const rows = (of: (env: Environment) => readonly Row[]) =>
      this.members
        .flatMap(({ env, name }) => of(env).map((row) => ({ ...row, info: { ...row.info, env_id: name } })))
        .map((row, exampleId) => ({ ...row, exampleId }))
    this.dataset = rows((env) => env.dataset)
    this.evalDataset = rows((env) => env.evalDataset)
    const turns = this.members.map(({ env }) => env.maxTurns ?? 1)
    this.maxTurns = turns.includes(-1) ? -1 : Math.max(...turns)
    this.rubric = new GroupRubric((info) => this.#memberOf(info).env.rubric, this.members)
  }

  async rollout(row: Row, ctx: RolloutContext): Promise<RolloutDraft> {
    return await this.#memberOf(row.info).env.rollout(row, ctx)
  }

  sftCompletion(row: Row): string | Message[] {
    const { env } = this.#memberOf(row.info)
    return env.sftCompletion ? env.sftCompletion(row) : row.answer
  }

  async close(): Promise<void> {
    await Promise.all(this.members.map(async ({ env }) => await env.close?.()))
  }

  #memberOf(info: Record<string, unknown>): EnvMember {
    const member = this.members.find(({ name }) => name === info.env_id)
    if (!member)
      throw new Error(`the row's info.env_id is ${JSON.stringify(info.env_id)}, but no member of the group has that name`)
    return member
  }
}

/** Flattens nested groups. Members share the weight of their group. Afterwards each row belongs to exactly one member, which plays it. */
function membersOf({ env, name, weight }: EnvMember): EnvMember[] {
  const inner = env.members ?? []
  if (inner.length === 0) return [{ env, name, weight }]
  const total = inner.reduce((sum, member) => sum + member.weight, 0)
  return inner.map((one) => ({ ...one, name: `${name}/${one.name}`, weight: (weight * one.weight) / total }))
}

/** A rubric that scores each rollout with the rubric of its member. */
class GroupRubric extends Rubric {
  readonly #of: (info: Record<string, unknown>) => Rubric
  readonly #rubrics: readonly Rubric[]

  constructor(of: (info: Record<string, unknown>) => Rubric, members: readonly EnvMember[]) {
    const rubrics = members.map(({ env }) => env.rubric)
    super(namesOf(rubrics))
    this.#of = of
    this.#rubrics = rubrics
  }

  override get groupNames(): string[] {
    return this.#rubrics.flatMap((rubric) => rubric.groupNames)
  }

  override score(...[rollout, options]: Parameters<Rubric['score']>): Promise<Scores> {
    return this.#of(rollout.info).score(rollout, options)
  }

  override scoreGroup(...[rollouts, options]: Parameters<Rubric['scoreGroup']>): Promise<Scores[]> {
    const { info } = rollouts[0]
    return this.#of(info).scoreGroup(rollouts, options)
  }
}
